"""Byte streams on non-blocking sockets.

asyncio's transports copy received bytes, and uvloop's cannot send files, so this module uses sockets directly: bytes
are received into the handler's buffer, one `sendmsg` sends a response of several parts, and `sendfile` sends a file
slice. A separate process sends cold slices.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence

from headwater.logtier.runtime.cold_sender import PART_BYTES, Sender
from headwater.logtier.runtime.socket_stream import WOULD_BLOCK, SocketStream
from headwater.logtier.runtime.streams import (
    FileSlice,
    Listener,
    Network,
    Part,
    Stream,
    StreamHandler,
    UnreadableError,
    blamed,
)
from headwater.logtier.runtime.tls_stream import RECEIVED_BYTES, TlsError, TlsStream

__all__ = [
    "FileSlice",
    "Listener",
    "Network",
    "Part",
    "SocketNetwork",
    "Stream",
    "StreamHandler",
    "TlsError",
    "UnreadableError",
    "plain_stream",
]

#: Connections accepted per turn of the loop, so that a flood of connections does not starve the established ones.
ACCEPTS_PER_TURN = 64
#: Maximum number of buffers of one sendmsg (IOV_MAX on Linux).
BUFFERS_PER_SEND = 1024
#: Bytes sent from files to one client per turn of the loop: a fast consumer must not delay the others.
SENDFILE_BYTES_PER_TURN = 256 << 10
#: Pause of a listener when the process has no free file descriptor.
ACCEPT_PAUSE_S = 0.1


class SocketNetwork:
    """TCP on the running event loop.

    Args:
        cold_sender: Sends cold file slices; without it the event loop sends them and waits for the device.
    """

    def __init__(self, cold_sender: Sender | None = None) -> None:
        self._cold_sender = cold_sender

    def listen(
        self,
        host: str,
        port: int,
        make_handler: Callable[[], StreamHandler],
        *,
        backlog: int,
        buffer_bytes: tuple[int, int] = (-1, -1),
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> Listener:
        """Open a TCP port; 0 picks a free one."""
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(backlog)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
        return _SocketListener(listening, make_handler, buffer_bytes, tls, self._cold_sender)


class _SocketListener:
    def __init__(
        self,
        listening: socket.socket,
        make_handler: Callable[[], StreamHandler],
        buffer_bytes: tuple[int, int],
        tls: Callable[[], ssl.SSLContext] | None,
        cold_sender: Sender | None,
    ) -> None:
        self.host, self.port = listening.getsockname()[:2]
        self._socket = listening
        self._make_handler = make_handler
        self._buffer_bytes = buffer_bytes
        self._tls = tls
        self._cold_sender = cold_sender
        self._tls_received = bytearray(RECEIVED_BYTES if tls is not None else 0)
        self._loop = asyncio.get_running_loop()
        self._resuming: asyncio.TimerHandle | None = None

    def accept(self) -> None:
        self._resuming = None
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def pause(self, pause_s: float) -> None:
        if self._resuming is None and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._resuming = self._loop.call_later(pause_s, self.accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._resuming is not None:
                return
            try:
                accepted, address = self._socket.accept()
            except WOULD_BLOCK:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # The backlog stays readable: without a pause the loop would spin.
                    self.pause(ACCEPT_PAUSE_S)
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, size in zip((socket.SO_SNDBUF, socket.SO_RCVBUF), self._buffer_bytes, strict=True):
                if size > 0:
                    accepted.setsockopt(socket.SOL_SOCKET, option, size)
            # A listener on all IPv6 addresses reports an IPv4 client by its IPv4 address, as other listeners do.
            host = str(address[0]).removeprefix("::ffff:")
            if self._tls is None:
                _PlainStream(self._loop, accepted, host, self._make_handler(), self._cold_sender)
            else:
                TlsStream(self._loop, accepted, host, self._make_handler(), self._tls(), self._tls_received)

    def close(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()


def plain_stream(
    loop: asyncio.AbstractEventLoop, connected: socket.socket, peer_host: str, handler: StreamHandler
) -> Stream:
    """Return the stream of a connected, non-blocking socket without encryption."""
    return _PlainStream(loop, connected, peer_host, handler, None)


class _PlainStream(SocketStream):
    """A connection without encryption."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: socket.socket,
        peer_host: str,
        handler: StreamHandler,
        cold_sender: Sender | None,
    ) -> None:
        super().__init__(loop, connected, peer_host, handler)
        self._cold_sender = cold_sender
        #: Bytes of the first part handed to the cold sender; no other code may send until they are sent.
        self._handed_bytes = 0
        self._begin()

    @property
    def is_writing(self) -> bool:
        """Whether parts passed to `write` are unsent."""
        return self._writer_armed or self._handed_bytes > 0

    def sends_cold(self) -> bool:
        """Whether a cold file slice would at present be sent without a wait of the event loop for the device."""
        return self._cold_sender is not None and self._cold_sender.is_ready()

    def write(self, parts: Sequence[Part]) -> None:
        """Send the parts in order; a single part, such as most produce responses, bypasses the queue."""
        if len(parts) == 1 and not self._pending and not self._closed:
            only = parts[0]
            if isinstance(only, bytes):
                try:
                    sent = self._socket.send(only)
                except WOULD_BLOCK:
                    sent = 0
                except OSError as error:
                    self._lose(error)
                    return
                if sent == len(only):
                    return
                parts = (memoryview(only)[sent:],)
        super().write(parts)

    def _readable(self) -> None:
        try:
            size = self._socket.recv_into(self._handler.get_buffer())
        except WOULD_BLOCK:
            return
        except OSError as error:
            self._lose(error)
            return
        if size:
            self._handler.buffer_updated(size)
        else:
            self._lose(None)

    def _send(self) -> None:
        """Send until the socket is full; the rest waits until the socket is writable."""
        pending = self._pending
        budget = SENDFILE_BYTES_PER_TURN
        try:
            while pending and budget > 0:
                first = pending[0]
                if isinstance(first, FileSlice):
                    if first.is_cold and self._hand_over(first):
                        return
                    sent = os.sendfile(self._fileno, first.fileno, first.position, min(first.size, budget))
                    if sent == 0:
                        raise OSError("the file is shorter than the slice that was to be sent")
                    budget -= sent
                    if sent == first.size:
                        pending.popleft()
                    else:
                        pending[0] = first.after(sent)
                        break  # the socket is full, or the budget is spent
                else:
                    self._send_buffers()
        except WOULD_BLOCK:
            pass
        except OSError as error:
            self._lose(blamed(pending[0], error) if isinstance(pending[0], FileSlice) else error)
            return
        self._arm_writer(bool(pending))

    def _hand_over(self, first: FileSlice) -> bool:
        """Hand a part of a cold slice to the cold sender; whether it accepted the part."""
        size = min(first.size, PART_BYTES)
        sender = self._cold_sender
        if sender is None or not sender.send(self._fileno, first.fileno, first.position, size, self._handed_over):
            return False
        self._handed_bytes = size
        self._arm_writer(False)
        return True

    def _handed_over(self, sent: int, error: OSError | None) -> None:
        handed, self._handed_bytes = self._handed_bytes, 0
        if self._closed:
            return
        first = self._pending[0]
        assert isinstance(first, FileSlice)
        if error is not None:
            self._lose(blamed(first, error))
            return
        if sent == first.size:
            self._pending.popleft()
        else:
            self._pending[0] = first.after(sent)
        if sent < handed:
            self._arm_writer(True)
        else:
            self._writable()

    def _lose(self, error: OSError | None) -> None:
        if self._handed_bytes and not self._closed:
            # The process has a descriptor of the socket, too: closing this one would not end the connection.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        super()._lose(error)

    def _send_buffers(self) -> None:
        pending = self._pending
        buffers: list[bytes | bytearray | memoryview] = []
        flags = 0
        for part in pending:
            if isinstance(part, FileSlice):
                # Lets the kernel put the header and the following records into one segment.
                flags = socket.MSG_MORE
                break
            buffers.append(part)
            if len(buffers) == BUFFERS_PER_SEND:
                break
        sent = self._socket.sendmsg(buffers, (), flags)
        for buffer in buffers:
            size = len(buffer)
            if sent < size:
                pending[0] = memoryview(buffer)[sent:]
                return
            sent -= size
            pending.popleft()
