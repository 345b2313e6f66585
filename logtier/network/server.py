"""Connections of clients: one request at a time each, as Kafka mutes a channel until its response is sent.

That keeps responses in the order of requests, bounds what one client can make us hold to one request and one response,
and lets a slow consumer wait for itself alone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from headwater.logtier.network.connection import (
    INITIAL_BUFFER_BYTES,
    KEPT_BUFFER_BYTES,
    SMALLEST_FRAME_BYTES,
    RequestFramer,
)
from headwater.logtier.network.connection_limits import ConnectionLimits, ConnectionRules
from headwater.logtier.network.request_memory import BEFORE_LOGIN_BYTES_MAX, Holder, RequestMemory
from headwater.logtier.protocol.errors import ProtocolViolationError
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.network import Listener, Network, Part, Stream, TlsError, UnreadableError
from headwater.logtier.security.failure_lines import FailureLines
from headwater.logtier.security.listener import PLAINTEXT_LISTENER, ListenerSecurity, UnnamedCertificateError
from headwater.logtier.security.sasl_session import ANONYMOUS, SaslSession, share_owner

logger = logging.getLogger(__name__)

#: A connection that was silent for so long gives its large buffer back.
REST_MS = 10_000
#: How long a request may be on its way while others wait for its memory: Kafka's `request.timeout.ms`, after which its
#: client has given it up.
SLOW_REQUEST_MS = 30_000

#: How long a client whose authentication failed has to read why.
REFUSED_CLOSE_S = 0.1

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
        idle_ms_max: A connection silent for longer is closed (`connections.max.idle.ms`), negative for no limit.
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


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """What the listeners of one broker share.

    Attributes:
        memory: For requests of clients whose listener asks for no login, or who have logged in.
        memory_before_login: For requests of all others. Apart, so that strangers hold up nobody who is known.
    """

    memory: RequestMemory
    connections: ConnectionLimits
    memory_before_login: RequestMemory = field(default_factory=lambda: RequestMemory(BEFORE_LOGIN_BYTES_MAX))


class Server:
    """A listener and its connections.

    Args:
        security: How its connections are secured.
        shared: What all listeners of a broker share; by default they are this listener's own.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        dispatch: Dispatch,
        limits: ServerLimits,
        security: ListenerSecurity = PLAINTEXT_LISTENER,
        shared: SharedLimits | None = None,
    ) -> None:
        self._network = network
        self._clock = clock
        self._dispatch = dispatch
        self._limits = limits
        self._security = security
        self._shared = shared or shared_limits(limits)
        self._connection_limits = self._shared.connections
        self._connections: set[ClientConnection] = set()
        self._listener: Listener | None = None
        self._idle_check: asyncio.TimerHandle | None = None
        self._failures = FailureLines() if security.sasl is None else security.sasl.failures
        #: Apart, so that requests that are refused hide no failed login.
        self._refusals = FailureLines()
        #: Told when the disk did not give a part of a response.
        self.on_unreadable: Callable[[UnreadableError], None] = lambda _: None

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Open the port and return the bound address; clients wait until `serve`.

        Raises:
            OSError: if the port cannot be had.
        """
        self._listener = self._network.listen(
            host,
            port,
            lambda: ClientConnection(self, self._clock, self._dispatch, self._limits, self._shared, self._security),
            backlog=self._limits.backlog,
            buffer_bytes=self._limits.buffer_bytes,
            tls=self._security.tls,
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

    def wait_ms(self, connection: "ClientConnection") -> int:
        """How long a connection is left alone before it is closed, as its host's come too fast; 0: it is welcome."""
        return self._connection_limits.host_wait_ms(connection.peer_host, self._clock.monotonic_ms())

    def admit(self, connection: "ClientConnection") -> bool:
        """Count a new connection, or refuse it with one log line."""
        host, listener = connection.peer_host, self._security.name
        pause_ms = self._connection_limits.pause_ms(listener, self._clock.monotonic_ms())
        if pause_ms and self._listener is not None:
            self._listener.pause(pause_ms / 1000)
        refusal = self._connection_limits.admit(listener, host)
        if refusal is not None:
            self.warn(host, "refused a connection from %s: %s", host, refusal)
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: "ClientConnection") -> None:
        """A connection is gone."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._connection_limits.release(self._security.name, connection.peer_host)

    def warn(self, host: str, message: str, *values: object) -> None:
        """Log what was wrong with a connection; of many from one host only the first, and then how many there were."""
        if self._failures.admit(host, self._clock.monotonic_ms()):
            logger.warning(message, *values)

    def logs_refusal(self, host: str) -> bool:
        """Count a request of this host that is refused; whether that gets a line of its own."""
        return self._refusals.admit(host, self._clock.monotonic_ms())

    def _schedule_idle_check(self) -> None:
        idle_ms_max = self._limits.idle_ms_max
        interval_s = (REST_MS if idle_ms_max < 0 else min(REST_MS, max(1000, idle_ms_max // 4))) / 1000
        self._idle_check = asyncio.get_running_loop().call_later(interval_s, self._check_idle)

    def _check_idle(self) -> None:
        """Close connections that are silent for too long; take large buffers from those that rest."""
        now_ms, idle_ms_max = self._clock.monotonic_ms(), self._limits.idle_ms_max
        for address, count in self._failures.due(now_ms):
            logger.warning("%d more failures of connections from %s were not logged", count, address)
        for address, count in self._refusals.due(now_ms):
            logger.warning("%d more refusals of requests from %s were not logged", count, address)
        for connection in list(self._connections):
            connection.note_progress(now_ms)
            if idle_ms_max >= 0 and connection.is_idle_since(now_ms - idle_ms_max):
                connection.close()
            elif connection.is_idle_since(now_ms - REST_MS):
                connection.shrink()
            if connection.withholds_request_since(now_ms - SLOW_REQUEST_MS):
                self.warn(
                    connection.peer_host,
                    "closed the connection of %s: others wait for the memory of its request, of which it sent only a "
                    "part in %d s",
                    connection.peer_host,
                    SLOW_REQUEST_MS // 1000,
                )
                connection.close()
        self._schedule_idle_check()


def shared_limits(limits: ServerLimits, rules: ConnectionRules | None = None) -> SharedLimits:
    """What the listeners of one broker share."""
    rules = rules or ConnectionRules(limits.connections_max, limits.connections_per_host_max)
    return SharedLimits(RequestMemory(limits.queued_bytes_max), ConnectionLimits(rules))


class ClientConnection:
    """One client: receives frames, has them answered one by one, sends the responses in that order.

    `principal` is who the client is by its listener and its certificate; where `sasl` is there, that says who it is.
    """

    def __init__(
        self,
        server: Server,
        clock: Clock,
        dispatch: Dispatch,
        limits: ServerLimits,
        shared: SharedLimits,
        security: ListenerSecurity = PLAINTEXT_LISTENER,
    ) -> None:
        self.peer_host = ""
        self.listener = security
        self.principal = ANONYMOUS
        self.sasl = None if security.sasl is None else SaslSession(security.sasl)
        #: Fetches still to come that are taken for reads of old data without a look at the page cache.
        self.cold_fetches = 0
        self._limits = limits
        self._server = server
        self._clock = clock
        self._dispatch = dispatch
        self._framer = RequestFramer(limits.request_bytes_max)
        #: Where the next bytes go.
        self.get_buffer: Callable[[], memoryview] = self._framer.get_buffer
        #: What ends the connection if TLS and SASL are not through by then; None once they are.
        self._handshake: asyncio.TimerHandle | None = None
        self._shared = shared
        #: The budget of the unfinished request, and what it holds of it.
        self._memory = shared.memory
        self._holder = Holder(None, self._granted)
        #: The same of the request that is being answered, while it keeps that.
        self._kept: tuple[RequestMemory, Holder] | None = None
        #: When the unfinished request was first granted memory, or last after it had waited.
        self._granted_ms = 0
        #: Whether the unfinished request is not read on, as it may not have the turn yet.
        self._is_held_back = False
        self._stream: Stream | None = None
        self._answering: asyncio.Future[Response] | None = None
        self._serving = False
        #: Ends the time for which the client's requests are left unread.
        self._unmuting: asyncio.TimerHandle | None = None
        #: When the client was last heard of, or seen to take what is sent to it.
        self._last_active_ms = clock.monotonic_ms()
        #: What of the response had not left at the last look.
        self._unsent_bytes = 0

    def connection_made(self, stream: Stream) -> None:
        """The client is connected; it may be one too many."""
        self.peer_host = stream.peer_host
        wait_ms = self._server.wait_ms(self)
        if wait_ms:
            # Not at once: who tries again as soon as it is closed would do nothing else.
            stream.pause_reading()
            asyncio.get_running_loop().call_later(wait_ms / 1000, stream.close)
            return
        self._stream = stream
        if not self._server.admit(self):
            stream.close()
        elif self.sasl is not None or self.listener.tls is not None:
            self._handshake = asyncio.get_running_loop().call_later(
                self.listener.handshake_ms / 1000, self._handshake_overdue
            )
            self._follow_authentication()

    def secured(self, certificate: bytes | None) -> None:
        """TLS is there; without SASL that says who the client is."""
        if self.sasl is not None:
            return
        try:
            self.principal = self.listener.name_of(certificate)
        except UnnamedCertificateError as error:
            self._server.warn(self.peer_host, "closed the connection of %s: %s", self.peer_host, error)
            self.close()
        else:
            self._end_handshake()

    def buffer_updated(self, size: int) -> None:
        """Bytes came: answer what is whole, unless a request is being answered."""
        self._framer.received(size)
        self._last_active_ms = self._clock.monotonic_ms()
        self._serve()

    def writing_done(self) -> None:
        """The client took the last response: go on with its next request."""
        if self.sasl is not None and self.sasl.has_failed:
            self._follow_authentication()
            return
        self._serve()

    def connection_lost(self, error: OSError | None) -> None:
        """The client is gone; what was being answered is given up."""
        self._stream = None
        self.release_request_memory()
        self._memory.release(self._holder)
        self._end_handshake()
        if isinstance(error, UnreadableError):
            self._server.on_unreadable(error)
        if isinstance(error, TlsError):
            self._server.warn(
                self.peer_host, "closed the connection of %s to %s: %s", self.peer_host, self.listener.name, error
            )
        elif error is not None:
            logger.info("connection of %s lost: %s", self.peer_host, error)
        if self._answering is not None:
            self._answering.cancel()
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._server.forget(self)

    def close(self) -> None:
        """End the connection."""
        if self._stream is not None:
            self._stream.close()

    def sends_cold(self) -> bool:
        """Whether cold records would be sent, at present, without the event loop waiting for the device."""
        return self._stream is not None and self._stream.sends_cold()

    def logs_refusal(self) -> bool:
        """Count a refusal; whether it gets a line of its own in the log."""
        return self._server.logs_refusal(self.peer_host)

    def keep_request_memory(self) -> bool:
        """Leave the request that is being dispatched in the budget of received requests until it is released.

        Returns whether it has the budget's turn: requests of others may wait until it is read.
        """
        memory, holder = self._memory, self._holder
        self._kept = (memory, holder)
        self._holder = Holder(None, self._granted)
        return memory.has_turn(holder)

    def release_request_memory(self) -> None:
        """The request is read: its bytes are needed no more."""
        if self._kept is not None:
            memory, holder = self._kept
            self._kept = None
            memory.release(holder)

    def mute(self, wait_ms: int) -> None:
        """Serve no request after the one that is being answered until the time is over (KIP-219)."""
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._unmuting = asyncio.get_running_loop().call_later(wait_ms / 1000, self._unmute)

    def _unmute(self) -> None:
        self._unmuting = None
        # The client was not silent: it was not listened to.
        self._last_active_ms = self._clock.monotonic_ms()
        self._serve()

    def note_progress(self, now_ms: int) -> None:
        """Look whether the client took something of its response since the last look: then it is not idle."""
        unsent_bytes = 0 if self._stream is None else self._stream.unsent_bytes
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes = unsent_bytes
            self._last_active_ms = now_ms

    def is_idle_since(self, deadline_ms: int) -> bool:
        """Whether the client did nothing since then, though it could, and nothing is being answered."""
        return self._last_active_ms < deadline_ms and self._answering is None and self._unmuting is None

    def withholds_request_since(self, deadline_ms: int) -> bool:
        """Whether others wait for the memory of a request that has had some since then and is still not whole.

        One that was kept from coming is not meant.
        """
        holder = self._holder
        return (
            holder.held_bytes > 0
            and not holder.wanted_bytes
            and not self._is_held_back
            and not self._framer.has_frame
            and self._granted_ms < deadline_ms
            and self._unmuting is None
            and self._memory.is_waited_for
        )

    def shrink(self) -> None:
        """Give back the buffer of a connection that rests."""
        self._framer.shrink()

    def _serve(self) -> None:
        if self._serving:
            return
        self._serving = True
        framer = self._framer
        drained: Stream | None = None
        try:
            while (
                (stream := self._stream) is not None
                and self._answering is None
                and not stream.is_writing
                and self._unmuting is None
            ):
                frame = framer.next_frame()
                if frame is None:
                    if framer.is_empty:
                        drained = stream
                    break
                if self._kept is not None:
                    self.release_request_memory()
                response = self._dispatch(frame, self)
                if self._holder.held_bytes or self._holder.wanted_bytes:
                    self._memory.release(self._holder)
                if response.__class__ is list:  # first: to ask an abstract class takes longer
                    stream.write(response)
                elif isinstance(response, Awaitable):
                    self._await(response)
                elif response is not None:
                    stream.write(response)
                if self.sasl is not None:
                    self._follow_authentication()
        except Exception as error:  # noqa: BLE001 (whatever went wrong concerns this connection only)
            self._fail(error)
        finally:
            self._serving = False
        if drained is not None:
            drained.resume_reading()
        elif self._stream is not None:
            # A whole frame that waits is enough read-ahead; without one we must hear of more bytes or of the end.
            if self._unmuting is not None or self._framer.has_frame or not self._has_memory(self._stream):
                self._stream.pause_reading()
            else:
                self._stream.resume_reading()

    def _has_memory(self, stream: Stream) -> bool:
        """Whether the request that is being received, if there is one, may have the buffer that it needs to go on.

        Asked again when the request before it is answered, and when the client has taken the answer.
        """
        holder = self._holder
        if holder.wanted_bytes:
            return False
        wanted = self._framer.unfinished_bytes
        if wanted <= holder.held_bytes:
            return True
        if not holder.held_bytes:
            is_known = self.sasl is None or self.sasl.principal != ANONYMOUS
            principal = self.principal if self.sasl is None else self.sasl.principal
            self._memory = self._shared.memory if is_known else self._shared.memory_before_login
            holder.owner = share_owner(principal, self.peer_host)
            self._granted_ms = self._last_active_ms
        is_next = self._answering is None and not stream.is_writing
        if not (self._memory.grant(holder, wanted) if is_next else self._memory.grant_if_it_fits(holder, wanted)):
            self._is_held_back = not is_next
            return False
        if self._is_held_back:
            self._is_held_back = False
            self._granted_ms = self._clock.monotonic_ms()
        return True

    def _granted(self) -> None:
        """The budget has room for more of the request at last: receive it."""
        self._granted_ms = self._clock.monotonic_ms()
        if self._stream is not None and self._unmuting is None and not self._holder.wanted_bytes:
            self._stream.resume_reading()

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

    def _fail(self, error: BaseException) -> None:
        """A request that cannot be answered ends its connection: one line, or a stack trace where the fault is ours."""
        message = "closed the connection of %s: %s"
        if isinstance(error, ProtocolViolationError):
            # As text: whoever keeps the line keeps what it is made of.
            self._server.warn(self.peer_host, message, self.peer_host, str(error))
        else:
            logger.error(message, self.peer_host, error, exc_info=error)
        self.close()

    def _answer(self, answering: "asyncio.Future[Response]") -> None:
        if self._stream is None or answering.cancelled():
            return
        error = answering.exception()
        if error is not None:
            # Not raised: it would have this frame, which has the future that has the error, and with it the request.
            self._fail(error)
            return
        response = answering.result()
        if response is not None:
            self._stream.write(response)
        if self.sasl is not None:
            self._follow_authentication()

    def _follow_authentication(self) -> None:
        """Take what the state of the authentication allows; a failure is the end once its answer is sent."""
        sasl = self.sasl
        if sasl is None:
            return
        if sasl.is_authenticated:
            if self._handshake is not None:
                self._end_handshake()
                self._framer.limit(
                    SMALLEST_FRAME_BYTES,
                    self._limits.request_bytes_max,
                    "socket.request.max.bytes",
                    kept_bytes_max=KEPT_BUFFER_BYTES,
                )
        elif sasl.has_failed:
            if self._stream is not None and not self._stream.is_writing:
                # Some clients do not read what comes together with the end of the connection.
                asyncio.get_running_loop().call_later(REFUSED_CLOSE_S, self.close)
        elif self._handshake is not None:
            # A token without a header may be empty.
            smallest = 0 if sasl.takes_raw_tokens else SMALLEST_FRAME_BYTES
            self._framer.limit(
                smallest,
                sasl.listener.receive_bytes_max,
                "sasl.server.max.receive.size",
                kept_bytes_max=INITIAL_BUFFER_BYTES,
            )

    def _end_handshake(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None

    def _handshake_overdue(self) -> None:
        self._handshake = None
        self._server.warn(
            self.peer_host,
            "closed the connection of %s to %s: no handshake within %d ms (connection.handshake.timeout.ms)",
            self.peer_host,
            self.listener.name,
            self.listener.handshake_ms,
        )
        self.close()
