"""Where foreign clients are served, and how many: on addresses that only this machine reaches."""

from __future__ import annotations

import ipaddress
from typing import Final

__all__ = ["CONNECTIONS_MAX", "LOCALHOST", "ServerRefusedError", "loopback_address"]

LOCALHOST: Final = "127.0.0.1"
#: Of each protocol. A connection has a thread of the JVM, whose stack is a MiB; further clients wait to be accepted.
CONNECTIONS_MAX: Final = 64


class ServerRefusedError(Exception):
    """A server for foreign clients cannot start; the message is one line."""


def loopback_address(address: str, server: str) -> str:
    """The loopback address that is meant. Raises ServerRefusedError for any other one.

    Args:
        server: The server's name, for the message.

    >>> loopback_address("localhost", "the Thrift server"), loopback_address("::1", "the Thrift server")
    ('127.0.0.1', '::1')
    """
    if address == "localhost":
        return LOCALHOST
    try:
        is_loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ServerRefusedError(
            f"{server} serves loopback addresses only, not {address}: its clients run programs and read files as this "
            "user, and the broker's ACLs are not asked for them; give 127.0.0.1, and reach it by an SSH tunnel"
        )
    return address
