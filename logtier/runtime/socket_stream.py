"""Base class of streams on non-blocking sockets, with and without encryption."""

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from headwater.logtier.runtime.streams import FileSlice, Part, StreamHandler

#: Errors of a non-blocking socket without data or room at present.
WOULD_BLOCK = (BlockingIOError, InterruptedError)


class SocketStream(ABC):
    """A connected socket with a queue of unsent parts.

    Invariant: the loop watches the socket for room only while parts passed to `write` are unsent. `write` calls `_send`
    if the queue was empty; otherwise the loop does. While another process sends a part, its answer replaces the watch.
    """

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

    def _begin(self) -> None:
        """Start the stream at the end of the constructor: the handler may use the stream immediately."""
        # In this order, so that a pause or a close by the handler takes effect last.
        self.resume_reading()
        self._handler.connection_made(self)

    @property
    def is_writing(self) -> bool:
        """Whether parts passed to `write` are unsent."""
        return self._writer_armed

    @property
    def unsent_bytes(self) -> int:
        """Unsent bytes of the parts passed to `write`, including the overhead of encryption."""
        return sum(part.size if isinstance(part, FileSlice) else len(part) for part in self._pending)

    def sends_cold(self) -> bool:
        """Whether a cold file slice would at present be sent without a wait of the event loop for the device."""
        return False

    def pause_reading(self) -> None:
        """Stop receiving bytes from the peer."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fileno)

    def resume_reading(self) -> None:
        """Resume receiving bytes from the peer."""
        if not self._reading and not self._closed:
            self._reading = True
            self._loop.add_reader(self._fileno, self._readable)

    def write(self, parts: Sequence[Part]) -> None:
        """Send the parts in order, immediately or as soon as the socket has room."""
        if self._closed:
            return
        self._pending.extend(parts)
        if not self.is_writing:
            self._send()

    def close(self) -> None:
        """Close the connection immediately."""
        self._lose(None)

    @abstractmethod
    def _readable(self) -> None:
        """Receive the available bytes."""

    @abstractmethod
    def _send(self) -> None:
        """Send until the socket is full, and watch for room (`_arm_writer`) if parts are unsent."""

    def _writable(self) -> None:
        self._send()
        if not self.is_writing and not self._closed:
            self._handler.writing_done()

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
