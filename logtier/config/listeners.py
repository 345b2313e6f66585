"""Listener addresses: Kafka's `NAME://host:port`, and the security protocol of each name."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headwater.logtier.config.definition import ConfigError

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

DEFAULT_PROTOCOL_MAP: Final = ",".join(f"{protocol}:{protocol}" for protocol in SECURITY_PROTOCOLS)
"""Default of `listener.security.protocol.map`: each protocol is also a listener name."""

LISTENERS_MAX: Final = 64
"""Every metadata response lists every address; a larger number is a mistake."""

_NAME: Final = re.compile(r"[A-Z0-9_.-]{1,64}")
_EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 (compared, not bound)


class Endpoint(NamedTuple):
    """One address. An empty host means all interfaces, port 0 any free port. The name is upper case."""

    name: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        """Return the address in Kafka's syntax.

        >>> str(Endpoint("PLAINTEXT", "::1", 9092))
        'PLAINTEXT://[::1]:9092'
        """
        return f"{self.name}://{self.address}"

    @property
    def address(self) -> str:
        """Host and port in the syntax of clients.

        >>> Endpoint("PLAINTEXT", "localhost", 9092).address
        'localhost:9092'
        """
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether clients authenticate with SASL."""
        return self.protocol.startswith("SASL")

    @property
    def is_everywhere(self) -> bool:
        """Whether the host means all interfaces, so that clients cannot connect to it."""
        return self.host in _EVERYWHERE


def parse_listener(config_name: str, text: str, protocols: Mapping[str, str] | None = None) -> Endpoint:
    """Parse an address; the ConfigError for an invalid one names the config.

    Args:
        protocols: Security protocols by listener name; by default each protocol is a listener name.

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
    """Parse `listener.security.protocol.map` into security protocols by listener name.

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
    """Check that the addresses are consistent with each other; ConfigError."""
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
