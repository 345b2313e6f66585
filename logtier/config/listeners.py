"""Addresses of a broker: Kafka's `NAME://host:port`, and the security protocol behind each name."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headwater.logtier.config.definition import ConfigError

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

DEFAULT_PROTOCOL_MAP: Final = ",".join(f"{protocol}:{protocol}" for protocol in SECURITY_PROTOCOLS)
"""`listener.security.protocol.map` as long as nobody sets it: each protocol is also the name of a listener."""

LISTENERS_MAX: Final = 64
"""More is a mistake: every client is told every address."""

_NAME: Final = re.compile(r"[A-Z0-9_.-]{1,64}")
_EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 (compared, not bound)


class Endpoint(NamedTuple):
    """One address. An empty host is every interface; port 0 any free port. The name is in capitals."""

    name: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        """Kafka's text of it.

        >>> str(Endpoint("PLAINTEXT", "::1", 9092))
        'PLAINTEXT://[::1]:9092'
        """
        return f"{self.name}://{self.address}"

    @property
    def address(self) -> str:
        """Host and port, as clients write them.

        >>> Endpoint("PLAINTEXT", "localhost", 9092).address
        'localhost:9092'
        """
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def uses_tls(self) -> bool:
        """Whether its bytes are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether its clients authenticate by SASL."""
        return self.protocol.startswith("SASL")

    @property
    def is_everywhere(self) -> bool:
        """Whether it is every interface of this machine, and so no address to connect to."""
        return self.host in _EVERYWHERE


def parse_listener(config_name: str, text: str, protocols: Mapping[str, str] | None = None) -> Endpoint:
    """The address of a text; ConfigError that names the config otherwise.

    Args:
        protocols: Security protocols by the names of listeners; by default each protocol is its own name.

    >>> parse_listener("listeners", "PLAINTEXT://[::1]:9092")
    Endpoint(name='PLAINTEXT', host='::1', port=9092, protocol='PLAINTEXT')
    >>> parse_listener("listeners", "inside://:9093", {"INSIDE": "SASL_SSL"})
    Endpoint(name='INSIDE', host='', port=9093, protocol='SASL_SSL')
    """
    if protocols is None:
        protocols = parse_protocol_map(DEFAULT_PROTOCOL_MAP)
    name, separator, address = text.partition("://")
    name = name.upper()
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        raise ConfigError(f"{config_name}: {text!r} is not of the form NAME://host:port, as PLAINTEXT://localhost:9092")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{config_name}: {name[:100]!r} in {text!r} cannot be the name of a listener")
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(
            f"{config_name}: {text!r}: the listener has no security protocol; add {name}:SASL_SSL (or another of "
            f"{', '.join(SECURITY_PROTOCOLS)}) to listener.security.protocol.map"
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{config_name}: an IPv6 address stands in brackets, as {name}://[::1]:9092, not {text!r}")
    if len(host) > 255 or any(character.isspace() or character in "/@?#[]" for character in host):
        raise ConfigError(f"{config_name}: {text!r} does not name a host")
    return Endpoint(name, host, int(port), protocol)


def parse_protocol_map(text: str) -> dict[str, str]:
    """Security protocols by the names of listeners, of the text of `listener.security.protocol.map`.

    >>> parse_protocol_map("INSIDE:PLAINTEXT, outside:SASL_SSL")
    {'INSIDE': 'PLAINTEXT', 'OUTSIDE': 'SASL_SSL'}
    """
    config_name = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not colon or not _NAME.fullmatch(name):
            raise ConfigError(f"{config_name}: {entry[:200]!r} is not of the form NAME:PROTOCOL, as INSIDE:SASL_SSL")
        if protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"{config_name}: {protocol[:100]!r} in {entry[:200]!r} is no security protocol; there are "
                f"{', '.join(SECURITY_PROTOCOLS)}"
            )
        if name in protocols:
            raise ConfigError(f"{config_name}: {name} stands there twice")
        protocols[name] = protocol
    return protocols


def check_listeners(bound: Sequence[Endpoint], advertised: Sequence[Endpoint]) -> None:
    """The rules over several addresses; ConfigError."""
    if len(bound) > LISTENERS_MAX:
        raise ConfigError(f"listeners: {len(bound)} are more than {LISTENERS_MAX}")
    ports = [listener.port for listener in bound if listener.port != 0]
    shown = ",".join(map(str, bound))
    if len(set(ports)) != len(ports):
        raise ConfigError(f"listeners: two of them have the same port: {shown}")
    names = [listener.name for listener in bound]
    if len(set(names)) != len(names):
        raise ConfigError(
            f"listeners: two of them have the same name: {shown}; give each its own, and its protocol in "
            "listener.security.protocol.map"
        )
    told = [listener.name for listener in advertised]
    if len(set(told)) != len(told):
        raise ConfigError(f"advertised.listeners: two of them have the same name: {','.join(map(str, advertised))}")
    for listener in advertised:
        if listener.name not in names:
            raise ConfigError(f"advertised.listeners: {listener} has a name that no listener has: {shown}")
        if listener.is_everywhere:
            raise ConfigError(
                f"advertised.listeners: {listener} is no address that a client can connect to; name the host"
            )
        if listener.port == 0:
            raise ConfigError(f"advertised.listeners: {listener} needs the port that clients connect to")
