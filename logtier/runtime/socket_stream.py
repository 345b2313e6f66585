"""What every stream on a non-blocking socket does, whatever its bytes look like on the wire."""

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from headwater.logtier.runtime.streams import FileSlice, Part, StreamHandler

#: A non-blocking socket that neither gives nor takes anything at present.
WOULD_BLOCK = (BlockingIOError, InterruptedError)


class SocketStream(ABC):
    """A connected socket with a queue of parts that the peer did not take yet.

    Invariant: the loop watches for room in the socket just while something given to `write` is left to send, so `_send`
    is called by whoever comes first: `write` when nothing was left, else the loop. (A stream that has another process
    send something is told by that instead.)
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
        """To be called at the end of the constructor: the handler may use the stream at once."""
        # In this order, so that a handler that pauses or closes the connection is the last to say.
        self.resume_reading()
        self._handler.connection_made(self)

    @property
    def is_writing(self) -> bool:
        """Whether parts given to `write` are not all sent yet."""
        return self._writer_armed

    @property
    def unsent_bytes(self) -> int:
        """How much of what was given to `write` is not sent yet, with what it is wrapped in."""
        return sum(part.size if isinstance(part, FileSlice) else len(part) for part in self._pending)

    def sends_cold(self) -> bool:
        """Whether a cold file slice would be sent, at present, without the event loop waiting for the device."""
        return False

    def pause_reading(self) -> None:
        """Take no more bytes from the peer for now."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fileno)

    def resume_reading(self) -> None:
        """Take bytes again."""
        if not self._reading and not self._closed:
            self._reading = True
            self._loop.add_reader(self._fileno, self._readable)

    def write(self, parts: Sequence[Part]) -> None:
        """Send the parts in order, now or as soon as the peer takes them."""
        if self._closed:
            return
        self._pending.extend(parts)
        if not self.is_writing:
            self._send()

    def close(self) -> None:
        """End the connection at once."""
        self._lose(None)

    @abstractmethod
    def _readable(self) -> None:
        """Take what the socket has."""

    @abstractmethod
    def _send(self) -> None:
        """Send what the peer takes now, and watch for room (`_arm_writer`) if something is left."""

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
