"""Host names that a request may address; the check keeps out web pages that use DNS rebinding.

A browser lets a page talk to the host that served it. The owner of that name can point it to 127.0.0.1 afterwards. The
Host header of such a request still contains the page's name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from headwater.api.errors import error_response

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

NAME_SHOWN_MAX: Final = 100


def host_name(header: str) -> str:
    """Return the host of a Host header without its port, in lower case.

    >>> host_name("LocalHost:8082"), host_name("[::1]:8082"), host_name("example.com.")
    ('localhost', '::1', 'example.com')
    """
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].removesuffix(".")


def is_known(name: str, hosts: Collection[str], server: str | None) -> bool:
    """Return whether a request may address a name: a configured one, a loopback name, or the address of the socket.

    An IP address in place of a name is safe: DNS cannot rebind an address.

    >>> is_known("localhost", (), "127.0.0.1"), is_known("10.0.0.1", (), "10.0.0.1"), is_known("evil.example", (), None)
    (True, True, False)
    """
    if name in hosts or name in LOOPBACK_NAMES:
        return True
    try:
        return server is not None and _address(name) == _address(server)
    except ValueError:
        return False


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address; a dual-stack socket reports IPv4 addresses in IPv6 form.

    >>> _address("::ffff:10.0.0.1")
    IPv4Address('10.0.0.1')
    """
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped if mapped is not None else address


class KnownHosts:
    """ASGI middleware: answers 421 to a request whose Host header is not one of the server's names."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset(host_name(f"[{host}]" if ":" in host else host) for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or answer it here."""
        if scope["type"] == "http":
            server = scope.get("server")
            for key, value in scope["headers"]:
                name = host_name(value.decode("latin-1")) if key == b"host" else None
                if name is not None and not is_known(name, self._hosts, server[0] if server else None):
                    message = (
                        f"{name[:NAME_SHOWN_MAX]!r} is no name of this server; call it by its address or as localhost, "
                        "or name it in the setting http_hosts"
                    )
                    await error_response(421, 421, message)(scope, receive, send)
                    return
        await self._app(scope, receive, send)
