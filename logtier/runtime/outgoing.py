"""Outgoing connections: the other side of `network`, with the same streams and handlers."""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final, Protocol

from headwater.logtier.runtime.network import plain_stream
from headwater.logtier.runtime.streams import Stream, StreamHandler
from headwater.logtier.runtime.tls_stream import RECEIVED_BYTES, TlsStream

#: Addresses of one host name that are tried in order; a name with more is a mistake of the name service.
ADDRESSES_MAX: Final = 16
#: Time for an address to accept before the next one is tried: a silent address must not hide the others.
ADDRESS_WAIT_S: Final = 2.0


class OutgoingNetwork(Protocol):
    """Opens connections to other processes."""

    async def connect(
        self,
        host: str,
        port: int,
        handler: StreamHandler,
        *,
        buffer_bytes: tuple[int, int] = (-1, -1),
        tls: ssl.SSLContext | None = None,
    ) -> Stream:
        """Connect; `connection_made` precedes the return, and with TLS `secured` follows at the end of the handshake.

        A cancelled call leaves no connection open, and calls no method of the handler.

        Args:
            host: Name or IP address; with TLS the name that the peer's certificate must be valid for.
            buffer_bytes: Sizes of the send and receive buffers, -1 for the system's default.
            tls: The TLS context; None for plain text.

        Raises:
            OSError: The host is unknown, or no address of it accepts the connection; the handler was not called.
        """


class SocketOutgoingNetwork:
    """TCP on the running event loop; names are resolved by the loop's resolver."""

    def __init__(self) -> None:
        #: Shared by all streams with TLS, allocated for the first one.
        self._tls_received: bytearray | None = None

    async def connect(
        self,
        host: str,
        port: int,
        handler: StreamHandler,
        *,
        buffer_bytes: tuple[int, int] = (-1, -1),
        tls: ssl.SSLContext | None = None,
    ) -> Stream:
        """Connect to the first address of the host that accepts."""
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"{host!r} cannot be the name of a host: {error}") from error
        targets = [(family, address) for family, _, _, _, address in addresses[:ADDRESSES_MAX]]
        connected = await _first_that_accepts(loop, targets, buffer_bytes)
        if tls is None:
            return plain_stream(loop, connected, host, handler)
        if self._tls_received is None:
            self._tls_received = bytearray(RECEIVED_BYTES)
        try:
            return TlsStream(loop, connected, host, handler, tls, self._tls_received, server_hostname=host)
        except ValueError as error:  # a host that cannot be the name of a certificate
            connected.close()
            raise OSError(f"{host!r} cannot be the name of a server: {error}") from error


async def _first_that_accepts(
    loop: asyncio.AbstractEventLoop, targets: Sequence[tuple[int, Any]], buffer_bytes: tuple[int, int]
) -> socket.socket:
    failure: OSError | None = None
    for number, (family, address) in enumerate(targets, 1):
        connecting = socket.socket(family, socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, size in zip((socket.SO_SNDBUF, socket.SO_RCVBUF), buffer_bytes, strict=True):
                if size > 0:
                    connecting.setsockopt(socket.SOL_SOCKET, option, size)
            async with asyncio.timeout(ADDRESS_WAIT_S if number < len(targets) else None):
                await loop.sock_connect(connecting, address)
            if connecting.getsockname() == connecting.getpeername():
                # The kernel chose the wanted port as the local one: without a listener there, TCP connects to itself.
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        except OSError as error:
            connecting.close()
            # asyncio's own text repeats the address.
            code = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno
            failure = failure or (OSError(code, os.strerror(code)) if code else error)
        except BaseException:
            connecting.close()
            raise
        else:
            return connecting
    raise failure or OSError("the host has no address")
