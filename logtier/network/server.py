"""Connections of clients: one request at a time each, as Kafka mutes a channel until its response is sent.

That keeps responses in the order of requests, bounds what one client can make us hold to one request and one response,
and lets a slow consumer wait for itself alone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from logtier.network.connection import RequestFramer
from logtier.network.request_memory import RequestMemory
from logtier.protocol.errors import ProtocolViolationError
from logtier.runtime.clock import Clock
from logtier.runtime.network import Listener, Network, Part, Stream

logger = logging.getLogger(__name__)

#: A connection that was silent for so long gives its large buffer back.
REST_MS = 10_000

#: The response of one request: its parts in order, or None where the request asked for none (acks=0).
Response = Sequence[Part] | None
#: What turns a frame into a response; the frame is there until then. It raises ProtocolViolationError to have the
#: connection closed.
Dispatch = Callable[[memoryview, "ClientConnection"], Response | Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one listener bears.

    Attributes:
        request_bytes_max: Largest request frame (`socket.request.max.bytes`).
        connections_max: Connections at one time (`max.connections`).
        connections_per_host_max: Connections of one host at one time (`max.connections.per.ip`).
        idle_ms_max: A connection silent for longer is closed (`connections.max.idle.ms`).
        queued_bytes_max: Requests that are being received, in all (`queued.max.request.bytes`), -1 for no limit.
        buffer_bytes: The kernel's send and receive buffers (`socket.send.buffer.bytes`, ...), -1 for its own choice.
        backlog: Connections that wait to be accepted (`socket.listen.backlog.size`).
    """

    request_bytes_max: int
    connections_max: int
    connections_per_host_max: int
    idle_ms_max: int
    queued_bytes_max: int = -1
    buffer_bytes: tuple[int, int] = (-1, -1)
    backlog: int = 50


class Server:
    """A listener and its connections."""

    def __init__(self, network: Network, clock: Clock, dispatch: Dispatch, limits: ServerLimits) -> None:
        self._network = network
        self._clock = clock
        self._dispatch = dispatch
        self._limits = limits
        self._memory = RequestMemory(limits.queued_bytes_max)
        self._connections: set[ClientConnection] = set()
        self._count_by_host: dict[str, int] = {}
        self._listener: Listener | None = None
        self._idle_check: asyncio.TimerHandle | None = None

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Open the port and return the bound address; clients wait until `serve`.

        Raises:
            OSError: if the port cannot be had.
        """
        self._listener = self._network.listen(
            host,
            port,
            lambda: ClientConnection(self, self._clock, self._dispatch, self._limits, self._memory),
            backlog=self._limits.backlog,
            buffer_bytes=self._limits.buffer_bytes,
        )
        return self._listener.host, self._listener.port

    def serve(self) -> None:
        """Take connections."""
        assert self._listener is not None, "bind first"
        self._listener.accept()
        self._schedule_idle_check()

    def stop(self) -> None:
        """Close the port and every connection."""
        if self._idle_check is not None:
            self._idle_check.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.close()

    def admit(self, connection: "ClientConnection") -> bool:
        """Count a new connection, or refuse it with one log line."""
        host = connection.peer_host
        if len(self._connections) >= self._limits.connections_max:
            logger.warning("refused a connection from %s: %d are open (max.connections)", host, len(self._connections))
            return False
        if self._count_by_host.get(host, 0) >= self._limits.connections_per_host_max:
            logger.warning(
                "refused a connection from %s: the host has %d open (max.connections.per.ip)",
                host,
                self._count_by_host[host],
            )
            return False
        self._connections.add(connection)
        self._count_by_host[host] = self._count_by_host.get(host, 0) + 1
        return True

    def forget(self, connection: "ClientConnection") -> None:
        """A connection is gone."""
        if connection in self._connections:
            self._connections.remove(connection)
            host = connection.peer_host
            self._count_by_host[host] -= 1
            if not self._count_by_host[host]:
                del self._count_by_host[host]

    def _schedule_idle_check(self) -> None:
        interval_s = min(REST_MS, max(1000, self._limits.idle_ms_max // 4)) / 1000
        self._idle_check = asyncio.get_running_loop().call_later(interval_s, self._check_idle)

    def _check_idle(self) -> None:
        """Close connections that are silent for too long; take large buffers from those that rest."""
        now_ms = self._clock.monotonic_ms()
        for connection in list(self._connections):
            if connection.is_idle_since(now_ms - self._limits.idle_ms_max):
                connection.close()
            elif connection.is_idle_since(now_ms - REST_MS):
                connection.shrink()
        self._schedule_idle_check()


class ClientConnection:
    """One client: receives frames, has them answered one by one, sends the responses in that order."""

    def __init__(
        self, server: Server, clock: Clock, dispatch: Dispatch, limits: ServerLimits, memory: RequestMemory
    ) -> None:
        self.peer_host = ""
        self._server = server
        self._clock = clock
        self._dispatch = dispatch
        self._framer = RequestFramer(limits.request_bytes_max)
        self._memory = memory
        #: What this connection holds of the shared budget: its unfinished request.
        self._admitted_bytes = 0
        self._is_queued = False
        self._stream: Stream | None = None
        self._answering: asyncio.Future[Response] | None = None
        self._serving = False
        self._last_received_ms = clock.monotonic_ms()

    def connection_made(self, stream: Stream) -> None:
        """The client is connected; it may be one too many."""
        self.peer_host = stream.peer_host
        self._stream = stream
        if not self._server.admit(self):
            stream.close()

    def get_buffer(self) -> memoryview:
        """Where the next bytes go."""
        return self._framer.get_buffer()

    def buffer_updated(self, size: int) -> None:
        """Bytes came: answer what is whole, unless a request is being answered."""
        self._framer.received(size)
        self._last_received_ms = self._clock.monotonic_ms()
        self._serve()

    def writing_done(self) -> None:
        """The client took the last response: go on with its next request."""
        self._serve()

    def connection_lost(self, error: OSError | None) -> None:
        """The client is gone; what was being answered is given up."""
        self._stream = None
        if self._is_queued:
            self._memory.withdraw(self._admitted)
        self._release()
        if error is not None:
            logger.info("connection of %s lost: %s", self.peer_host, error)
        if self._answering is not None:
            self._answering.cancel()
        self._server.forget(self)

    def close(self) -> None:
        """End the connection."""
        if self._stream is not None:
            self._stream.close()

    def is_idle_since(self, deadline_ms: int) -> bool:
        """Whether nothing was received since then and nothing is being answered."""
        return self._last_received_ms < deadline_ms and self._answering is None

    def shrink(self) -> None:
        """Give back the buffer of a connection that rests."""
        self._framer.shrink()

    def _serve(self) -> None:
        if self._serving:
            return
        self._serving = True
        try:
            while self._stream is not None and self._answering is None and not self._stream.is_writing:
                frame = self._framer.next_frame()
                if frame is None:
                    break
                self._release()
                response = self._dispatch(frame, self)
                if isinstance(response, Awaitable):
                    self._await(response)
                elif response is not None:
                    self._stream.write(response)
        except Exception as error:  # noqa: BLE001 (whatever went wrong concerns this connection only)
            self._fail(error)
        finally:
            self._serving = False
        if self._stream is not None:
            # A whole frame that waits is enough read-ahead; without one we must hear of more bytes or of the end.
            if self._framer.has_frame or not self._has_memory():
                self._stream.pause_reading()
            else:
                self._stream.resume_reading()

    def _has_memory(self) -> bool:
        """Whether the request that is being received, if there is one, is admitted to the shared budget."""
        if self._is_queued:
            return False
        wanted = self._framer.unfinished_bytes
        if wanted <= self._admitted_bytes:
            return True
        self._is_queued = not self._memory.admit(wanted, self._admitted)
        if not self._is_queued:
            self._admitted_bytes = wanted
        return not self._is_queued

    def _admitted(self) -> None:
        """The budget has room for the request at last: receive the rest of it."""
        self._is_queued = False
        self._admitted_bytes = self._framer.unfinished_bytes
        if self._stream is not None:
            self._stream.resume_reading()

    def _release(self) -> None:
        if self._admitted_bytes:
            # First to zero: whoever is admitted by the release may be this connection again.
            released, self._admitted_bytes = self._admitted_bytes, 0
            self._memory.release(released)

    def _await(self, response: Awaitable[Response]) -> None:
        answering = asyncio.ensure_future(response)
        if answering.done():
            self._answer(answering)
        else:
            self._answering = answering
            answering.add_done_callback(self._answered)

    def _answered(self, answering: "asyncio.Future[Response]") -> None:
        self._answering = None
        try:
            self._answer(answering)
        except Exception as error:  # noqa: BLE001 (as in _serve)
            self._fail(error)
        self._serve()

    def _fail(self, error: Exception) -> None:
        """A request that cannot be answered ends its connection: one line, or a stack trace where the fault is ours."""
        fault = None if isinstance(error, ProtocolViolationError) else error
        logger.log(
            logging.ERROR if fault else logging.WARNING,
            "closed the connection of %s: %s",
            self.peer_host,
            error,
            exc_info=fault,
        )
        self.close()

    def _answer(self, answering: "asyncio.Future[Response]") -> None:
        if self._stream is None or answering.cancelled():
            return
        response = answering.result()
        if response is not None:
            self._stream.write(response)
