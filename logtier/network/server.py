"""Client connections: one request at a time each, as Kafka mutes a channel until its response is sent.

This keeps responses in the order of requests, limits the memory per client to one request and one response, and lets a
slow consumer delay only itself. Produce requests alone overlap (ADR 45): the next is carried out while earlier ones,
whose records are in the log, wait for the followers or the device.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from headwater.logtier.network.connection import (
    INITIAL_BUFFER_BYTES,
    KEPT_BUFFER_BYTES,
    SMALLEST_FRAME_BYTES,
    RequestFramer,
)
from headwater.logtier.network.connection_limits import ConnectionLimits, ConnectionRules, HostWait, admit_every_host
from headwater.logtier.network.pending_answers import PendingAnswers, Response, failed
from headwater.logtier.network.request_memory import BEFORE_LOGIN_BYTES_MAX, Holder, RequestMemory
from headwater.logtier.protocol.errors import ProtocolViolationError
from headwater.logtier.protocol.messages import PRODUCE_KEY
from headwater.logtier.records.awaited_batches import AwaitedBatches
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.network import Listener, Network, Stream, TlsError, UnreadableError
from headwater.logtier.security.failure_lines import FailureLines
from headwater.logtier.security.listener import PLAINTEXT_LISTENER, ListenerSecurity, UnnamedCertificateError
from headwater.logtier.security.sasl_session import ANONYMOUS, SaslSession, share_owner

logger = logging.getLogger(__name__)

#: A connection idle for this time frees its large buffer.
REST_MS = 10_000
#: Longest time to receive a request while others wait for its memory: Kafka's `request.timeout.ms`, after which its
#: client gives up.
SLOW_REQUEST_MS = 30_000

#: Time for a client to read the reason of a failed authentication.
REFUSED_CLOSE_S = 0.1

#: Turns a frame, which stays valid until then, into a response. ProtocolViolationError closes the connection.
Dispatch = Callable[[memoryview, "ClientConnection"], Response | Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of one listener.

    Attributes:
        request_bytes_max: Largest request frame (`socket.request.max.bytes`).
        connections_max: Open connections (`max.connections`).
        connections_per_host_max: Open connections of one host (`max.connections.per.ip`).
        idle_ms_max: Idle time before a connection is closed (`connections.max.idle.ms`), negative for no limit.
        queued_bytes_max: Memory of all requests being received (`queued.max.request.bytes`), -1 for no limit.
        buffer_bytes: The kernel's send and receive buffers (`socket.send.buffer.bytes`, ...), -1 for its default.
        backlog: Connections waiting to be accepted (`socket.listen.backlog.size`).
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
    """The limits shared by the listeners of one broker.

    Attributes:
        memory: Budget of clients that are authenticated, or whose listener needs no authentication.
        connections: Limits of connections.
        memory_before_login: Budget of all other clients, separate so that they cannot delay authenticated clients.
    """

    memory: RequestMemory
    connections: ConnectionLimits
    memory_before_login: RequestMemory = field(default_factory=lambda: RequestMemory(BEFORE_LOGIN_BYTES_MAX))


class Server:
    """A listener and its connections.

    Args:
        security: Security of the listener's connections.
        shared: Limits shared by all listeners of a broker; by default the listener's own.
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
        #: In the order of their arrival, in which a stop closes them: it is the same in each run of a simulation.
        self._connections: dict[ClientConnection, None] = {}
        self._listener: Listener | None = None
        self._idle_check: asyncio.TimerHandle | None = None
        self._failures = FailureLines() if security.sasl is None else security.sasl.failures
        #: Separate, so that rejected requests hide no failed authentication.
        self._refusals = FailureLines()
        #: Called when the disk failed to read a part of a response.
        self.on_unreadable: Callable[[UnreadableError], None] = lambda _: None

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Open the port and return the bound address (host, port); clients wait until `serve`.

        Raises:
            OSError: The port is not available.
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
        """Accept connections."""
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
        """Delay before closing a connection that exceeds its host's rate quota, in ms; 0 admits it."""
        return self._connection_limits.host_wait_ms(connection.peer_host, self._clock.monotonic_ms())

    def admit(self, connection: "ClientConnection") -> bool:
        """Count a new connection, or reject it with one log line."""
        host, listener = connection.peer_host, self._security.name
        pause_ms = self._connection_limits.pause_ms(listener, self._clock.monotonic_ms())
        if pause_ms and self._listener is not None:
            self._listener.pause(pause_ms / 1000)
        refusal = self._connection_limits.admit(listener, host)
        if refusal is not None:
            self.warn(host, "refused a connection from %s: %s", host, refusal)
            return False
        self._connections[connection] = None
        return True

    def forget(self, connection: "ClientConnection") -> None:
        """Stop counting a connection that ended."""
        if connection in self._connections:
            del self._connections[connection]
            self._connection_limits.release(self._security.name, connection.peer_host)

    def warn(self, host: str, message: str, *values: object) -> None:
        """Log a failure of a connection; of many from one host only the first, and later their number."""
        if self._failures.admit(host, self._clock.monotonic_ms()):
            logger.warning(message, *values)

    def logs_refusal(self, host: str) -> bool:
        """Count a rejected request of a host; return whether to log it."""
        return self._refusals.admit(host, self._clock.monotonic_ms())

    def _schedule_idle_check(self) -> None:
        idle_ms_max = self._limits.idle_ms_max
        interval_s = (REST_MS if idle_ms_max < 0 else min(REST_MS, max(1000, idle_ms_max // 4))) / 1000
        self._idle_check = asyncio.get_running_loop().call_later(interval_s, self._check_idle)

    def _check_idle(self) -> None:
        """Close connections that are idle for too long; free large buffers of those that rest."""
        now_ms, idle_ms_max = self._clock.monotonic_ms(), self._limits.idle_ms_max
        for address, count in self._failures.due(now_ms):
            logger.warning("%d further failures of connections from %s were not logged", count, address)
        for address, count in self._refusals.due(now_ms):
            logger.warning("%d further refusals of requests from %s were not logged", count, address)
        for connection in list(self._connections):
            connection.note_progress(now_ms)
            if idle_ms_max >= 0 and connection.is_idle_since(now_ms - idle_ms_max):
                connection.close()
            elif connection.is_idle_since(now_ms - REST_MS):
                connection.shrink()
            if connection.withholds_request_since(now_ms - SLOW_REQUEST_MS):
                self.warn(
                    connection.peer_host,
                    "closed the connection of %s: it sent only a part of its request in %d s, while other clients wait "
                    "for request memory",
                    connection.peer_host,
                    SLOW_REQUEST_MS // 1000,
                )
                connection.close()
        self._schedule_idle_check()


def shared_limits(
    limits: ServerLimits, rules: ConnectionRules | None = None, host_wait_ms: HostWait = admit_every_host
) -> SharedLimits:
    """Create the limits shared by the listeners of one broker."""
    rules = rules or ConnectionRules(limits.connections_max, limits.connections_per_host_max)
    return SharedLimits(RequestMemory(limits.queued_bytes_max), ConnectionLimits(rules, host_wait_ms))


class ClientConnection:
    """One client: receives frames, dispatches them in order, sends the responses in that order.

    `principal` is the client's identity from the listener and the certificate; with `sasl`, the SASL session has it.
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
        #: Number of further fetches that count as cold reads without a check of the page cache.
        self.cold_fetches = 0
        self._limits = limits
        self._server = server
        self._clock = clock
        self._dispatch = dispatch
        self._framer = RequestFramer(limits.request_bytes_max)
        #: Returns the buffer for the next received bytes.
        self.get_buffer: Callable[[], memoryview] = self._framer.get_buffer
        #: Timer that closes the connection if TLS and SASL are not finished; None afterwards.
        self._handshake: asyncio.TimerHandle | None = None
        self._shared = shared
        #: The budget of the request being received, and its memory.
        self._memory = shared.memory
        self._holder = Holder(None, self._granted)
        #: The budget and memory of the request being answered, while it keeps them.
        self._kept: tuple[RequestMemory, Holder] | None = None
        #: Time at which the request being received was first granted memory, or last after a wait.
        self._granted_ms = 0
        #: Whether receiving of the request pauses because it may not have the turn yet.
        self._is_held_back = False
        self._stream: Stream | None = None
        self._answers = PendingAnswers()
        #: Whether the request last dispatched, a Produce, has been carried out and only its answer is awaited.
        self._is_carried_out = False
        #: Refused batches that the client will send again.
        self.awaited_batches = AwaitedBatches()
        self._serving = False
        #: Timer that ends muting of the client.
        self._unmuting: asyncio.TimerHandle | None = None
        #: Time at which the client last sent data or accepted response data.
        self._last_active_ms = clock.monotonic_ms()
        #: Unsent bytes of the response at the last check.
        self._unsent_bytes = 0

    def connection_made(self, stream: Stream) -> None:
        """Handle a new connection, which may exceed a limit."""
        self.peer_host = stream.peer_host
        wait_ms = self._server.wait_ms(self)
        if wait_ms:
            # Delayed: a client that reconnects at once would otherwise loop.
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
        """Take the identity from the certificate after the TLS handshake, unless SASL provides it."""
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
        """Handle received bytes: dispatch whole frames, unless they must wait for the answer of an earlier one."""
        self._framer.received(size)
        self._last_active_ms = self._clock.monotonic_ms()
        self._serve()

    def writing_done(self) -> None:
        """Continue with the next request after the client accepted the last response."""
        if self.sasl is not None and self.sasl.has_failed:
            self._follow_authentication()
            return
        self._serve()

    def connection_lost(self, error: OSError | None) -> None:
        """Handle the end of the connection; requests being answered are cancelled."""
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
        self._answers.cancel()
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._server.forget(self)

    def close(self) -> None:
        """Close the connection."""
        if self._stream is not None:
            self._stream.close()

    def sends_cold(self) -> bool:
        """Whether cold records can be sent at present without the event loop waiting for the device."""
        return self._stream is not None and self._stream.sends_cold()

    def logs_refusal(self, host: str) -> bool:
        """Count a rejected request of this client, or of one for which it speaks; return whether to log it."""
        return self._server.logs_refusal(host)

    def keep_request_memory(self) -> bool:
        """Keep the request being dispatched in the budget of received requests until its release.

        Returns whether the request has the budget's turn: requests of others may wait until it is read.
        """
        memory, holder = self._memory, self._holder
        self._kept = (memory, holder)
        self._holder = Holder(None, self._granted)
        return memory.has_turn(holder)

    def release_request_memory(self) -> None:
        """Release the memory of a request that has been read."""
        if self._kept is not None:
            memory, holder = self._kept
            self._kept = None
            memory.release(holder)

    def carried_out(self) -> None:
        """Serve further Produce requests while the answer of the one last dispatched is awaited."""
        self._is_carried_out = True
        if not self._serving:  # it had to wait before that, and others may have come
            asyncio.get_running_loop().call_soon(self._serve)

    def mute(self, wait_ms: int) -> None:
        """Serve no request after those dispatched for `wait_ms` (KIP-219)."""
        loop = asyncio.get_running_loop()
        if self._unmuting is not None:
            if self._unmuting.when() >= loop.time() + wait_ms / 1000:
                return  # of several requests that overlap the longest time counts
            self._unmuting.cancel()
        self._unmuting = loop.call_later(wait_ms / 1000, self._unmute)

    def _unmute(self) -> None:
        self._unmuting = None
        # The client was muted, not idle.
        self._last_active_ms = self._clock.monotonic_ms()
        self._serve()

    def note_progress(self, now_ms: int) -> None:
        """Count the client as active if it accepted response data since the last call."""
        unsent_bytes = 0 if self._stream is None else self._stream.unsent_bytes
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes = unsent_bytes
            self._last_active_ms = now_ms

    def is_idle_since(self, deadline_ms: int) -> bool:
        """Whether the client has been inactive since the deadline, is not muted, and no request is being answered."""
        return self._last_active_ms < deadline_ms and not self._answers and self._unmuting is None

    def withholds_request_since(self, deadline_ms: int) -> bool:
        """Whether others wait for the memory of a request that was granted some before the deadline and is incomplete.

        A request whose receiving the broker paused does not count.
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
        """Free the buffer of an idle connection."""
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
                and not stream.is_writing
                and self._unmuting is None
                and (not self._answers or self._may_overlap())
            ):
                frame = framer.next_frame()
                if frame is None:
                    if framer.is_empty:
                        drained = stream
                    break
                if self._kept is not None:
                    self.release_request_memory()
                self._is_carried_out = False
                size = len(frame)
                try:
                    response = self._dispatch(frame, self)
                except Exception as error:
                    if not self._answers:
                        raise
                    response = failed(error)  # behind the answers of earlier requests
                if self._holder.held_bytes or self._holder.wanted_bytes:
                    self._memory.release(self._holder)
                if self._answers:
                    if not isinstance(response, Awaitable):
                        self._is_carried_out = True
                    self._await(response, size)
                elif response.__class__ is list:  # first: isinstance of an abstract class takes longer
                    stream.write(response)
                elif isinstance(response, Awaitable):
                    self._await(response, size)
                elif response is not None:
                    stream.write(response)
                if self.sasl is not None:
                    self._follow_authentication()
        except Exception as error:  # noqa: BLE001 (any error concerns this connection only)
            self._fail(error)
        finally:
            self._serving = False
        if drained is not None:
            drained.resume_reading()
        elif self._stream is not None:
            # A whole waiting frame is enough read-ahead; without it, further bytes or the end must be noticed.
            if self._unmuting is not None or self._framer.has_frame or not self._has_memory(self._stream):
                self._stream.pause_reading()
            else:
                self._stream.resume_reading()

    def _has_memory(self, stream: Stream) -> bool:
        """Whether the request being received, if any, has the buffer it needs to continue.

        Checked again when the previous request is answered and when the client has accepted the response.
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
        is_next = not self._answers and not stream.is_writing
        if not (self._memory.grant(holder, wanted) if is_next else self._memory.grant_if_it_fits(holder, wanted)):
            self._is_held_back = not is_next
            return False
        if self._is_held_back:
            self._is_held_back = False
            self._granted_ms = self._clock.monotonic_ms()
        return True

    def _granted(self) -> None:
        """Continue receiving after the budget granted memory."""
        self._granted_ms = self._clock.monotonic_ms()
        if self._stream is not None and self._unmuting is None and not self._holder.wanted_bytes:
            self._stream.resume_reading()

    def _may_overlap(self) -> bool:
        """Whether the next request may be served before the last one is answered."""
        return self._is_carried_out and self._answers.have_room and self._framer.next_api_key() in (None, PRODUCE_KEY)

    def _await(self, response: Response | Awaitable[Response], size: int) -> None:
        """Send a response when it is there and all earlier ones are sent; `size` is that of the request's frame."""
        if not isinstance(response, Awaitable):
            self._answers.add(response, size)
            return
        answer = asyncio.ensure_future(response)
        self._answers.add(answer, size)
        if answer.done():
            self._send_answers()
        else:
            answer.add_done_callback(self._answered)

    def _answered(self, _: "asyncio.Future[Response]") -> None:
        try:
            self._send_answers()
        except Exception as error:  # noqa: BLE001 (as in _serve)
            self._fail(error)
        self._serve()

    def _send_answers(self) -> None:
        """Send the answers that are there, all in one system call."""
        parts, error = self._answers.take_ready()
        if self._stream is None:
            return
        if parts:
            self._stream.write(parts)
        if error is not None:
            self._fail(error)
        elif self.sasl is not None:
            self._follow_authentication()

    def _fail(self, error: BaseException) -> None:
        """Close the connection after an error: one log line, with a stack trace for an internal error."""
        message = "closed the connection of %s: %s"
        if isinstance(error, ProtocolViolationError):
            # As text: a kept log record would keep its arguments alive.
            self._server.warn(self.peer_host, message, self.peer_host, str(error))
        else:
            logger.error(message, self.peer_host, error, exc_info=error)
        self.close()

    def _follow_authentication(self) -> None:
        """Apply the limits of the authentication state; after a failure, close when the response is sent."""
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
                # Some clients do not read data that arrives together with the end of the connection.
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
