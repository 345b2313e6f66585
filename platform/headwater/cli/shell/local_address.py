"""Whether a host name is that of this machine."""

from __future__ import annotations

import functools
import socket


@functools.cache
def is_this_machine(host: str) -> bool:
    """Return whether a name or an address leads to this machine: a socket can be bound to its own addresses only.

    A name with several addresses is this machine's if one of them is. Port 0 of UDP is always free.

    >>> is_this_machine("127.0.0.1"), is_this_machine("203.0.113.7")
    (True, False)
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_own(family, address) for family, _, _, _, address in found)


def _is_own(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as bound:
            bound.bind(address)
    except OSError:
        return False
    return True
