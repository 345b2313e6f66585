"""One connection to another broker: connected, encrypted, authenticated, then requests in the order of the calls."""

from __future__ import annotations

import asyncio
import base64
import enum
import ssl
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headwater.logtier.client.connection import REQUESTS_IN_FLIGHT_MAX, BrokerConnection, Request, Response
from headwater.logtier.client.errors import (
    AuthenticationError,
    BrokerConnectionError,
    BrokerError,
    ClientError,
    InvalidResponseError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.client.tls import client_context
from headwater.logtier.config import ConfigError
from headwater.logtier.peers.login import LoggedIn, check_supported, login_steps
from headwater.logtier.peers.pending_call import GRACE_MS, STALL_MS, PendingCall
from headwater.logtier.peers.settings import BrokerAddress, PeerSettings
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.outgoing import OutgoingNetwork
from headwater.logtier.runtime.random_bytes import RandomBytes
from headwater.logtier.runtime.streams import Stream
from headwater.logtier.runtime.tls_stream import TlsError
from headwater.logtier.security.key_files import tls_reason

__all__ = ["LinkContext", "LinkOwner", "PeerLink"]

#: Responses begin in this buffer: small ones take one system call, and of a large one at most this much is copied.
HEAD_BYTES: Final = 16 << 10
NONCE_BYTES: Final = 24
#: Largest response before the login: a list of API versions, of mechanisms, or a token.
LOGIN_RESPONSE_BYTES_MAX: Final = 512 << 10
#: A session is renewed after a random part of its lifetime in this range, as in Kafka: not all brokers at once.
RENEW_FROM: Final = 0.85
RENEW_TO: Final = 0.95


class LinkOwner(Protocol):
    """Receives the events of a link, each synchronously."""

    def link_answered(self) -> None:
        """Handle the first response after the login: the broker works."""

    def link_closed(self, link: PeerLink, failure: ClientError, *, was_idle: bool) -> None:
        """Handle the end of the link, called once; `was_idle` if no call failed by it."""


@dataclass(frozen=True, slots=True)
class LinkContext:
    """What the links of one broker share.

    Attributes:
        draw: Draws a number from [0, 1).
        random_bytes: Draws the nonces of SCRAM, from a secure source.
    """

    network: OutgoingNetwork
    clock: Clock
    draw: Callable[[], float]
    random_bytes: RandomBytes
    settings: PeerSettings


class LinkState(enum.Enum):
    """The state of a link. Requests wait in all states but READY and CLOSED."""

    CONNECTING = "connecting"
    LOGGING_IN = "logging in"
    READY = "ready"
    RENEWING = "renewing"
    CLOSED = "closed"


class _LoginStep:
    """A request of the login among those in flight."""

    __slots__ = ("_advance", "request", "sent_ms", "timeout_ms")

    def __init__(self, request: Request[Any], advance: Callable[[Any], None]) -> None:
        self.request = request
        self.timeout_ms = 0
        self.sent_ms = -1
        self._advance = advance

    def answered(self, value: Any) -> None:
        self._advance(value)

    def failed(self, failure: ClientError) -> None:
        """The link fails as a whole."""


class PeerLink:
    """The handler of one outgoing stream; used by a `Peer`, on one event loop.

    Requests are written in the order of the calls, at most REQUESTS_IN_FLIGHT_MAX at a time; responses come in that
    order. Any error closes the link and fails its calls: after a lost or truncated response the order of the others is
    unknown.

    A cancelled call, or one whose own time limit passes, leaves the link open: its response is dropped when it comes.
    Closing would fail the calls of others, and an impatient caller does not mean a broken connection. A response that
    is missing for `request.timeout.ms` does: it closes the link, whether or not its caller still waits.

    A session that is about to expire is renewed between two requests (KIP-368): requests in flight are answered first,
    since responses are in order, and later requests wait. An unused session is not renewed.

    Invariant: `_in_flight` holds the requests of the core, in its order; only READY links write requests of callers.
    """

    def __init__(
        self, name: str, address: BrokerAddress, security: ClientSecurity, context: LinkContext, owner: LinkOwner
    ) -> None:
        """Begin to connect."""
        self.name = f"{name} at {address}"
        self.address = address
        self._security = security
        self._context = context
        self._owner = owner
        self._state = LinkState.CONNECTING
        self._core = BrokerConnection(
            context.settings.client_id, response_bytes_max=min(LOGIN_RESPONSE_BYTES_MAX, self._response_bytes_max)
        )
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._stream: Stream | None = None
        self._steps: Generator[Request[Any], Any, LoggedIn] | None = None
        self._versions: Mapping[int, tuple[int, int]] | None = None
        self._login_begun_ms = 0
        self._renew_at_ms: int | None = None
        self._in_flight: deque[PendingCall[Any] | _LoginStep] = deque()
        self._waiting: deque[PendingCall[Any]] = deque()
        self._used_ms = context.clock.monotonic_ms()
        self._has_answered = False
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.TimerHandle | None = None
        self._setup = self._loop.call_later(context.settings.setup_timeout_ms / 1000, self._setup_timed_out)
        self._opening: asyncio.Task[None] = self._loop.create_task(self._open())

    @property
    def _response_bytes_max(self) -> int:
        return self._context.settings.response_bytes_max

    @property
    def security(self) -> ClientSecurity:
        """The settings of TLS and SASL with which the link was opened."""
        return self._security

    @property
    def is_closed(self) -> bool:
        """Whether the link ended."""
        return self._state is LinkState.CLOSED

    @property
    def was_ready(self) -> bool:
        """Whether the login succeeded once."""
        return self._versions is not None

    @property
    def waiting_calls(self) -> int:
        """Number of calls whose request is not written yet."""
        return len(self._waiting)

    @property
    def is_stale(self) -> bool:
        """Whether the link was unused for so long that the other side may be about to close it."""
        idle_ms = self._context.clock.monotonic_ms() - self._used_ms
        return self._state is LinkState.READY and not self._in_flight and idle_ms >= self._context.settings.idle_ms_max

    def send(self, call: PendingCall[Any]) -> None:
        """Write the request, or queue it behind the earlier ones."""
        assert self._state is not LinkState.CLOSED, "a closed link takes no calls"
        self._waiting.append(call)
        if self._state is LinkState.READY:
            self._flush()

    def drop_unwanted(self) -> None:
        """Remove calls from the queue whose callers wait no longer."""
        self._waiting = deque(call for call in self._waiting if call.is_wanted)

    def close(self, failure: ClientError) -> None:
        """Close the connection and fail the calls."""
        if self._state is LinkState.CLOSED:
            return
        self._state = LinkState.CLOSED
        self._setup.cancel()
        self._opening.cancel()
        if self._watch is not None:
            self._watch.cancel()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        calls = [*self._in_flight, *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        for call in calls:
            call.failed(failure)
        self._owner.link_closed(self, failure, was_idle=not calls)

    async def ended(self) -> None:
        """Wait for the end of an attempt to connect that `close` cancelled."""
        await asyncio.wait((self._opening,))

    # -- connecting and login

    async def _open(self) -> None:
        host, port, _ = self.address
        settings = self._context.settings
        try:
            context = None
            if self._security.uses_tls:
                # Read for each connection: renewed certificates take effect. In a thread: files may be slow.
                context = await asyncio.to_thread(client_context, self._security)
            await self._context.network.connect(
                host, port, self, buffer_bytes=(settings.send_buffer_bytes, settings.receive_buffer_bytes), tls=context
            )
        except ConfigError as error:
            failure = AuthenticationError(f"no connection to {self.name}: {error}")
            failure.__cause__ = error
            self.close(failure)
        except OSError as error:
            self.close(BrokerConnectionError(f"no connection to {self.name}: {error.strerror or error}"))

    def _setup_timed_out(self) -> None:
        step = "connection to" if self._stream is None else "login at"
        self.close(BrokerConnectionError(f"no {step} {self.name} within {self._context.settings.setup_timeout_ms} ms"))

    def connection_made(self, stream: Stream) -> None:
        """Log in; with TLS after the handshake."""
        if self._state is LinkState.CLOSED:
            stream.close()
            return
        self._stream = stream
        if not self._security.uses_tls:
            self._begin_login(LinkState.LOGGING_IN)

    def secured(self, certificate: bytes | None) -> None:  # noqa: ARG002 (of the interface)
        """Log in: the TLS handshake verified the broker."""
        self._begin_login(LinkState.LOGGING_IN)

    def _begin_login(self, state: LinkState) -> None:
        self._state = state
        self._login_begun_ms = self._context.clock.monotonic_ms()
        self._renew_at_ms = None
        self._steps = login_steps(self._security, self.name, self._nonce(), self._versions)
        self._advance_login(None)

    def _nonce(self) -> str:
        return base64.urlsafe_b64encode(self._context.random_bytes(NONCE_BYTES)).decode()

    def _advance_login(self, response: Any) -> None:
        assert self._steps is not None
        try:
            request = self._steps.send(response)
        except StopIteration as end:
            self._logged_in(end.value)
        except (AuthenticationError, UnsupportedVersionError) as error:
            self.close(error)
        except BrokerError as error:
            self.close(BrokerConnectionError(str(error)))
        else:
            self._write(_LoginStep(request, self._advance_login))

    def _logged_in(self, login: LoggedIn) -> None:
        self._steps = None
        self._setup.cancel()
        self._versions = login.versions
        self._core.limit(self._response_bytes_max)
        if login.lifetime_ms > 0:
            part = RENEW_FROM + (RENEW_TO - RENEW_FROM) * self._context.draw()
            self._renew_at_ms = self._login_begun_ms + int(login.lifetime_ms * part)
        self._state = LinkState.READY
        self._flush()

    # -- requests

    def _flush(self) -> None:
        """Write waiting requests, as many as may be in flight."""
        while self._waiting and self._state is LinkState.READY and len(self._in_flight) < REQUESTS_IN_FLIGHT_MAX:
            call = self._waiting[0]
            if not call.is_wanted:
                self._waiting.popleft()
                continue
            if self._renew_at_ms is not None and self._context.clock.monotonic_ms() >= self._renew_at_ms:
                self._begin_login(LinkState.RENEWING)
                return
            self._waiting.popleft()
            try:
                check_supported(call.request, self._versions or {}, self.name)
            except UnsupportedVersionError as error:
                call.failed(error)
            else:
                self._write(call)

    def _write(self, call: PendingCall[Any] | _LoginStep) -> None:
        assert self._stream is not None
        call.sent_ms = self._used_ms = self._context.clock.monotonic_ms()
        _, frame = self._core.send(call.request)
        self._in_flight.append(call)
        if self._watch is None:
            self._watch_for(self._expires_ms(call))
        self._stream.write((frame,))

    def _expires_ms(self, call: PendingCall[Any] | _LoginStep) -> int:
        return call.sent_ms + max(self._context.settings.request_timeout_ms, call.timeout_ms)

    def _watch_for(self, due_ms: int) -> None:
        delay_ms = max(1, due_ms - self._context.clock.monotonic_ms())
        self._watch = self._loop.call_later(delay_ms / 1000, self._check_oldest, due_ms)

    def _check_oldest(self, due_ms: int) -> None:
        """Close the link if the oldest request in flight is unanswered for too long."""
        self._watch = None
        if not self._in_flight:
            return
        now_ms = self._context.clock.monotonic_ms()
        oldest = self._in_flight[0]
        expires_ms = self._expires_ms(oldest)
        if now_ms < expires_ms:
            self._watch_for(expires_ms)
        elif now_ms - due_ms >= STALL_MS:
            self._watch_for(now_ms + GRACE_MS)
        else:
            limit_ms = expires_ms - oldest.sent_ms
            self.close(RequestTimeoutError(f"{self.name} did not answer within {limit_ms} ms"))

    # -- responses

    def get_buffer(self) -> memoryview:
        """Return the shared head buffer between responses, and within one the memory of its rest."""
        return self._head if self._core.is_between_responses else self._core.get_buffer()

    def buffer_updated(self, size: int) -> None:
        """Deliver the responses that the received bytes complete."""
        if self._state is LinkState.CLOSED:
            return
        try:
            if self._core.is_between_responses:
                self._take_head(size)
            else:
                self._take(self._core.buffer_updated(size))
        except InvalidResponseError as error:
            self.close(InvalidResponseError(f"{self.name}: {error}"))

    def _take_head(self, size: int) -> None:
        received = self._head[:size]
        while received and self._state is not LinkState.CLOSED:
            buffer = self._core.get_buffer()
            taken = min(len(buffer), len(received))
            buffer[:taken] = received[:taken]
            received = received[taken:]
            self._take(self._core.buffer_updated(taken))

    def _take(self, response: Response[object] | None) -> None:
        if response is None:
            return
        self._used_ms = self._context.clock.monotonic_ms()
        call = self._in_flight.popleft()
        call.answered(response.value)
        if not self._has_answered and isinstance(call, PendingCall):
            self._has_answered = True
            self._owner.link_answered()
        if self._waiting:
            self._flush()

    def writing_done(self) -> None:
        """Requests are bounded by their number in flight: nothing waits for room."""

    def connection_lost(self, error: OSError | None) -> None:
        """Fail the calls, with the reason as this side knows it."""
        self._stream = None
        self.close(self._reason(error))

    def _reason(self, error: OSError | None) -> ClientError:
        cause = error.__cause__ if isinstance(error, TlsError) else None
        failure: ClientError
        if self._state in (LinkState.CONNECTING, LinkState.LOGGING_IN) and isinstance(cause, ssl.SSLError):
            if isinstance(cause, ssl.SSLCertVerificationError):
                failure = AuthenticationError(f"{self.name} is not to be trusted: {tls_reason(cause)}")
            elif self._state is LinkState.CONNECTING:
                failure = AuthenticationError(f"the TLS handshake with {self.name} failed: {tls_reason(cause)}")
            else:  # with TLS 1.3 a broker rejects a certificate after the client's end of the handshake
                failure = AuthenticationError(f"{self.name} refuses this broker: {tls_reason(cause)}")
        elif error is not None:
            failure = BrokerConnectionError(f"the connection to {self.name} broke: {error.strerror or error}")
        elif self._state is LinkState.CONNECTING:
            failure = BrokerConnectionError(f"{self.name} ended the TLS handshake; does it speak TLS?")
        elif self._state is LinkState.LOGGING_IN:
            failure = BrokerConnectionError(f"{self.name} ended the login; is it the listener for brokers?")
        else:
            failure = BrokerConnectionError(f"{self.name} closed the connection")
        failure.__cause__ = error
        return failure
