"""Addresses of a broker: Kafka's `PROTOCOL://host:port`."""

from typing import Final, NamedTuple

from logtier.config.definition import ConfigError

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Listener(NamedTuple):
    """One address. An empty host is every interface; port 0 any free port."""

    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        """Kafka's text of it.

        >>> str(Listener("PLAINTEXT", "::1", 9092))
        'PLAINTEXT://[::1]:9092'
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}://{host}:{self.port}"


def parse_listener(config_name: str, text: str) -> Listener:
    """The address of a text; ConfigError that names the config otherwise.

    >>> parse_listener("listeners", "PLAINTEXT://[::1]:9092")
    Listener(protocol='PLAINTEXT', host='::1', port=9092)
    """
    protocol, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        raise ConfigError(f"{config_name}: {text!r} is not of the form PLAINTEXT://host:port")
    if protocol not in _PROTOCOLS:
        raise ConfigError(f"{config_name}: {protocol!r} in {text!r} is no security protocol; use PLAINTEXT")
    if protocol != "PLAINTEXT":
        raise ConfigError(f"{config_name}: {text!r}: this release listens on PLAINTEXT only")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{config_name}: an IPv6 address stands in brackets, as PLAINTEXT://[::1]:9092, not {text!r}")
    if len(host) > 255 or any(character.isspace() or character in "/@?#[]" for character in host):
        raise ConfigError(f"{config_name}: {text!r} does not name a host")
    return Listener(protocol, host, int(port))
