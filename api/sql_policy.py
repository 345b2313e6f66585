"""Who may run queries over REST, while callers are not authenticated."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

from headwater.api.access import BROKER_IS_SECURED, HOST_IS_OPEN, SETTING_FORBIDS
from headwater.api.hosts import LOOPBACK_NAMES, host_name


@dataclass(frozen=True, slots=True)
class SqlPolicy:
    """Whether queries are accepted: `refusal` says why none is.

    Any process on this machine may, and no web page: `caller_refusal` looks at one request.
    """

    refusal: str | None = None

    @classmethod
    def of(cls, http_changes: str, *, broker_is_secured: bool, host_is_loopback: bool) -> SqlPolicy:
        """Build the policy from where the server listens and from the setting `http_changes`.

        No setting opens the route to other machines. The service reads with its own rights, so that a secured broker
        closes the route as well, unless `http_changes` is `allow`.

        >>> SqlPolicy.of("allow", broker_is_secured=True, host_is_loopback=False).refusal
        'it listens on an address that other machines reach'
        >>> SqlPolicy.of("auto", broker_is_secured=False, host_is_loopback=True).refusal is None
        True
        """
        if not host_is_loopback:
            return cls(HOST_IS_OPEN)
        if http_changes == "refuse":
            return cls(SETTING_FORBIDS)
        return cls(BROKER_IS_SECURED if broker_is_secured and http_changes != "allow" else None)

    def caller_refusal(self, client: str | None, host: str, origin: str | None) -> str | None:
        """Why a request is refused, by its client's address and its headers Host and Origin; None if it is not.

        >>> SqlPolicy().caller_refusal("127.0.0.1", "localhost:8082", None) is None
        True
        >>> SqlPolicy().caller_refusal("127.0.0.1", "localhost:8082", "http://evil.example")
        "the page 'http://evil.example' is not one of this server's"
        """
        if self.refusal is not None:
            return self.refusal
        if client is None or not is_loopback(client):
            return "the caller is on another machine"
        if host_name(host) not in LOOPBACK_NAMES and not is_loopback(host_name(host)):
            return f"{host_name(host)[:100]!r} is no name of the loopback address: call it as localhost"
        if origin is not None and origin.lower() not in _own_origins(host):
            return f"the page {origin[:100]!r} is not one of this server's"
        return None


def is_loopback(address: str) -> bool:
    """Whether a text is a loopback address, also as IPv6 writes that of IPv4.

    >>> is_loopback("127.0.0.1"), is_loopback("::ffff:127.0.0.1"), is_loopback("10.0.0.1"), is_loopback("localhost")
    (True, True, False, False)
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped if mapped is not None else found).is_loopback


def _own_origins(host: str) -> Collection[str]:
    return {f"http://{host.strip().lower()}", f"https://{host.strip().lower()}"}
