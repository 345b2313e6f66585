"""Byte streams as an interface, and their implementation on non-blocking sockets.

asyncio's transports copy what they read and cannot send a file on uvloop, so the sockets are ours: bytes are received
straight into the handler's buffer, a response of several parts leaves in one `sendmsg`, and a file slice by `sendfile`.
"""

import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

#: Accepted in one turn of the loop, so that a flood of connections does not starve the established ones.
ACCEPTS_PER_TURN = 64
#: The kernel takes no more buffers than this in one sendmsg (IOV_MAX on Linux).
BUFFERS_PER_SEND = 1024
#: Sent from one file before the loop may turn: one fast consumer must not hold up the others.
SENDFILE_BYTES_PER_TURN = 4 << 20
#: How long a listener rests when the process has no file descriptor left.
ACCEPT_PAUSE_S = 0.1

_WOULD_BLOCK = (BlockingIOError, InterruptedError)


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes of an open file, to be sent without being read.

    Attributes:
        owner: Keeps the file open until the slice is sent.
    """

    fileno: int
    position: int
    size: int
    owner: object


Part = bytes | bytearray | memoryview | FileSlice


class Stream(Protocol):
    """One connection, as its handler sees it."""

    peer_host: str

    @property
    def is_writing(self) -> bool:
        """Whether parts given to `write` are not all sent yet."""

    def write(self, parts: Sequence[Part]) -> None:
        """Send the parts in order, now or as soon as the peer takes them."""

    def pause_reading(self) -> None:
        """Take no more bytes from the peer for now."""

    def resume_reading(self) -> None:
        """Take bytes again."""

    def close(self) -> None:
        """End the connection at once; `connection_lost` follows."""


class StreamHandler(Protocol):
    """What a listener makes for each connection."""

    def connection_made(self, stream: Stream) -> None:
        """The connection is there."""

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""

    def buffer_updated(self, size: int) -> None:
        """`size` bytes were put into the buffer."""

    def writing_done(self) -> None:
        """Everything given to `write` is sent, after a time when it was not."""

    def connection_lost(self, error: OSError | None) -> None:
        """The connection is gone; called once."""


class Listener(Protocol):
    """An open port."""

    host: str
    port: int

    def accept(self) -> None:
        """Begin to take connections; until then they wait in the backlog."""

    def close(self) -> None:
        """Accept no more."""


class Network(Protocol):
    """Where listeners come from."""

    def listen(
        self,
        host: str,
        port: int,
        make_handler: Callable[[], StreamHandler],
        *,
        backlog: int,
        buffer_bytes: tuple[int, int],
    ) -> Listener:
        """Open a port.

        Args:
            backlog: Connections that the kernel keeps until they are accepted.
            buffer_bytes: The kernel's send and receive buffers of each connection, -1 for its own choice.

        Raises:
            OSError: if the port is in use or the address is not ours.
        """


class SocketNetwork:
    """TCP on the running event loop."""

    def listen(
        self,
        host: str,
        port: int,
        make_handler: Callable[[], StreamHandler],
        *,
        backlog: int,
        buffer_bytes: tuple[int, int] = (-1, -1),
    ) -> Listener:
        """Open a TCP port; 0 lets the kernel choose a free one."""
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
        return _SocketListener(listening, make_handler, buffer_bytes)


class _SocketListener:
    def __init__(
        self, listening: socket.socket, make_handler: Callable[[], StreamHandler], buffer_bytes: tuple[int, int]
    ) -> None:
        self.host, self.port = listening.getsockname()[:2]
        self._socket = listening
        self._make_handler = make_handler
        self._buffer_bytes = buffer_bytes
        self._loop = asyncio.get_running_loop()

    def accept(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = self._socket.accept()
            except _WOULD_BLOCK:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # The backlog stays readable: without a rest this would spin.
                    self._loop.remove_reader(self._socket.fileno())
                    self._loop.call_later(ACCEPT_PAUSE_S, self.accept)
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, size in zip((socket.SO_SNDBUF, socket.SO_RCVBUF), self._buffer_bytes, strict=True):
                if size > 0:
                    accepted.setsockopt(socket.SOL_SOCKET, option, size)
            _SocketStream(self._loop, accepted, str(address[0]), self._make_handler())

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()


class _SocketStream:
    """A non-blocking socket with a queue of parts that the peer did not take yet."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connected: socket.socket, peer_host: str, handler: StreamHandler
    ) -> None:
        self.peer_host = peer_host
        self._loop = loop
        self._socket = connected
        self._fileno = connected.fileno()
        self._handler = handler
        self._pending: deque[Part] = deque()
        self._reading = False
        self._writer_armed = False
        self._closed = False
        handler.connection_made(self)
        self.resume_reading()

    @property
    def is_writing(self) -> bool:
        return bool(self._pending)

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fileno)

    def resume_reading(self) -> None:
        if not self._reading and not self._closed:
            self._reading = True
            self._loop.add_reader(self._fileno, self._readable)

    def write(self, parts: Sequence[Part]) -> None:
        if self._closed:
            return
        idle = not self._pending
        self._pending.extend(parts)
        if idle:
            self._send()

    def close(self) -> None:
        self._lose(None)

    def _readable(self) -> None:
        try:
            size = self._socket.recv_into(self._handler.get_buffer())
        except _WOULD_BLOCK:
            return
        except OSError as error:
            self._lose(error)
            return
        if size:
            self._handler.buffer_updated(size)
        else:
            self._lose(None)

    def _writable(self) -> None:
        self._send()
        if not self._pending and not self._closed:
            self._handler.writing_done()

    def _send(self) -> None:
        """Send what the peer takes now; what is left waits until the socket is writable."""
        pending = self._pending
        budget = SENDFILE_BYTES_PER_TURN
        try:
            while pending and budget > 0:
                first = pending[0]
                if isinstance(first, FileSlice):
                    sent = os.sendfile(self._fileno, first.fileno, first.position, min(first.size, budget))
                    if sent == 0:
                        raise OSError(errno.EIO, "the file is shorter than the slice that was to be sent")
                    budget -= sent
                    if sent == first.size:
                        pending.popleft()
                    else:
                        pending[0] = FileSlice(first.fileno, first.position + sent, first.size - sent, first.owner)
                        break  # the peer takes no more now, or the budget is spent
                else:
                    self._send_buffers()
        except _WOULD_BLOCK:
            pass
        except OSError as error:
            self._lose(error)
            return
        self._arm_writer(bool(pending))

    def _send_buffers(self) -> None:
        pending = self._pending
        buffers: list[bytes | bytearray | memoryview] = []
        flags = 0
        for part in pending:
            if isinstance(part, FileSlice):
                # Let the kernel put the header and the records that follow it into one segment.
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

    def _arm_writer(self, wanted: bool) -> None:
        if wanted != self._writer_armed and not self._closed:
            self._writer_armed = wanted
            if wanted:
                self._loop.add_writer(self._fileno, self._writable)
            else:
                self._loop.remove_writer(self._fileno)

    def _lose(self, error: OSError | None) -> None:
        if self._closed:
            return
        self.pause_reading()
        self._arm_writer(False)
        self._closed = True
        self._pending.clear()
        with contextlib.suppress(OSError):
            self._socket.close()
        self._handler.connection_lost(error)
