"""Authentication on one connection: permitted requests, principal, expiry; sans-IO.

As in Kafka, SaslHandshake selects the mechanism, and SaslAuthenticate carries the tokens (KIP-152), or, after a
handshake of version 0, frames that contain only a token. An authenticated client may re-authenticate (KIP-368), with
the same mechanism and as the same user.
"""

import enum
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headwater.logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from headwater.logtier.security.failure_lines import FailureLines
from headwater.logtier.security.sasl import AuthenticationError, InvalidTokenError, SaslServer

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of an unauthenticated client."""

SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36

REAUTHENTICATION_PAUSE_MS: Final = 1000
"""Shortest interval between re-authentications; earlier ones are rejected, as in Kafka."""

TOKENS_MAX: Final = 16
"""Maximum number of tokens of one exchange; SCRAM has two."""

BEFORE_AUTHENTICATION_MAX: Final = 16
"""Maximum number of requests before authentication; a client needs two, or a few more to negotiate versions."""


def share_owner(principal: str, host: str) -> Hashable:
    """Return the owner of the share of common resources in which a client's requests count.

    Unauthenticated clients are distinguished by host.

    >>> share_owner("User:alice", "10.0.0.1") == share_owner("User:alice", "10.0.0.2")
    True
    >>> share_owner(ANONYMOUS, "10.0.0.1") == share_owner(ANONYMOUS, "10.0.0.2")
    False
    """
    return (principal, host if principal == ANONYMOUS else "")


class SaslState(enum.Enum):
    """The state of a connection's authentication."""

    HANDSHAKE = "handshake"
    AUTHENTICATING = "authenticating"
    AUTHENTICATED = "authenticated"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SaslListener:
    """The settings shared by all connections of a listener.

    Attributes:
        servers: Creates the exchange of a mechanism, by enabled mechanism, in the order reported to clients.
        reauthenticate_ms: Session lifetime by mechanism; 0 for unlimited (`connections.max.reauth.ms`).
        failure_delay_ms: Delay before a failure is reported to the client.
        receive_bytes_max: Largest request before authentication.
        failures: Limits the log lines of failed authentications.
    """

    servers: Mapping[str, Callable[[], SaslServer]]
    reauthenticate_ms: Mapping[str, int]
    failure_delay_ms: int = 100
    receive_bytes_max: int = 524_288
    failures: FailureLines = field(default_factory=FailureLines)


@dataclass(frozen=True, slots=True)
class SaslAnswer:
    """The response to a token. `message` and `reason` describe a failure to the client and in the log."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    token: bytes = b""
    session_lifetime_ms: int = 0
    reason: str = ""


class SaslSession:
    """The authentication of one connection.

    Invariant: in state AUTHENTICATED `principal` is the authenticated principal, and keeps it during re-authentication.
    """

    __slots__ = (
        "_bad_mechanism",
        "_begun_ms",
        "_expires_ms",
        "_framed",
        "_mechanism",
        "_requests",
        "_server",
        "_state",
        "_tokens",
        "listener",
        "principal",
    )

    def __init__(self, listener: SaslListener) -> None:
        self.listener = listener
        self.principal = ANONYMOUS
        self._state = SaslState.HANDSHAKE
        self._mechanism: str | None = None
        self._server: SaslServer | None = None
        self._framed = True
        self._tokens = 0
        self._requests = 0
        self._expires_ms: int | None = None
        self._begun_ms: int | None = None
        self._bad_mechanism: str | None = None

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms available to the client."""
        return tuple(self.listener.servers)

    @property
    def mechanism(self) -> str | None:
        """The mechanism chosen by the client."""
        return self._mechanism

    @property
    def is_authenticated(self) -> bool:
        """Whether all requests are permitted."""
        return self._state is SaslState.AUTHENTICATED

    @property
    def is_authenticating(self) -> bool:
        """Whether a token is expected."""
        return self._state is SaslState.AUTHENTICATING

    @property
    def has_failed(self) -> bool:
        """Whether the connection must be closed after its last response."""
        return self._state is SaslState.FAILED

    @property
    def takes_raw_tokens(self) -> bool:
        """Whether the next frame contains only a token."""
        return self._state is SaslState.AUTHENTICATING and not self._framed

    def admit(self, api_key: int, name: str, now_ms: int) -> None:
        """Check whether a request is permitted in the present state.

        Raises:
            ProtocolViolationError: The connection must be closed.
            KafkaError: illegal_sasl_state; the connection must be closed after this response.
        """
        if self._state is SaslState.AUTHENTICATED:
            if self._expires_ms is not None and now_ms >= self._expires_ms and api_key != SASL_HANDSHAKE:
                raise ProtocolViolationError(f"the session of {self.principal} expired before {name}")
            return
        if self._state is SaslState.AUTHENTICATING:
            if api_key != SASL_AUTHENTICATE:
                self._state = SaslState.FAILED
                raise KafkaError(
                    ErrorCode.illegal_sasl_state, f"Unexpected Kafka request of type {name} during SASL authentication."
                )
            return
        self._requests += 1
        if api_key not in (SASL_HANDSHAKE, API_VERSIONS) or self._state is SaslState.FAILED:
            raise ProtocolViolationError(
                f"{name} came before authentication: the listener requires SASL; check the client's configuration"
            )
        if self._requests > BEFORE_AUTHENTICATION_MAX:
            raise ProtocolViolationError(f"more than {BEFORE_AUTHENTICATION_MAX} requests before authentication")

    def handshake(self, mechanism: str, version: int, now_ms: int) -> ErrorCode:
        """Choose the mechanism of the following tokens; return the error code."""
        again = self._state is SaslState.AUTHENTICATED
        if again:
            if self._begun_ms is not None and now_ms - self._begun_ms < REAUTHENTICATION_PAUSE_MS:
                return ErrorCode.illegal_sasl_state
            self._begun_ms = now_ms
        if mechanism not in self.listener.servers:
            self._state = SaslState.FAILED
            return ErrorCode.unsupported_sasl_mechanism
        if again and mechanism != self._mechanism:
            self._bad_mechanism = mechanism[:64]
        else:
            self._mechanism = mechanism
        self._framed = version >= 1
        self._server = self.listener.servers[mechanism]()
        self._tokens = 0
        self._state = SaslState.AUTHENTICATING
        return ErrorCode.none

    async def authenticate(self, token: bytes, now_ms: int, wall_ms: int) -> SaslAnswer:
        """Process the client's next token.

        Args:
            now_ms: Monotonic time.
            wall_ms: Wall clock time, for the expiry of credentials.
        """
        assert self._server is not None, "admitted only after a handshake"
        again = self.principal != ANONYMOUS
        doing = "re-authentication" if again else "authentication"
        if self._bad_mechanism is not None:
            return self._fail(
                f"SASL mechanism '{self._bad_mechanism}' requested by client is not supported for re-authentication "
                f"of mechanism '{self._mechanism}'"
            )
        self._tokens += 1
        try:
            if self._tokens > TOKENS_MAX:
                raise InvalidTokenError(f"more than {TOKENS_MAX} tokens")
            step = await self._server.evaluate(token)
        except AuthenticationError as error:
            return self._fail(str(error))
        except InvalidTokenError as error:
            return self._fail(
                f"Authentication failed during {doing} due to invalid credentials with SASL mechanism "
                f"{self._mechanism}",
                str(error),
            )
        if step.user is None:
            return SaslAnswer(token=step.token, reason=step.refused or "")
        principal = f"User:{step.user}"
        if again and principal != self.principal:
            was, became = self.principal.replace(":", ".", 1), principal.replace(":", ".", 1)
            return self._fail(f"Cannot change principals during re-authentication from {was}: {became}")
        self.principal = principal
        self._server = None
        self._state = SaslState.AUTHENTICATED
        lifetime_ms = self._lifetime_ms(step.expires_ms, wall_ms)
        self._expires_ms = None if lifetime_ms is None else now_ms + lifetime_ms
        return SaslAnswer(token=step.token, session_lifetime_ms=lifetime_ms or 0)

    def _lifetime_ms(self, expires_ms: int | None, wall_ms: int) -> int | None:
        assert self._mechanism is not None
        limits = [] if expires_ms is None else [max(0, expires_ms - wall_ms)]
        reauthenticate_ms = self.listener.reauthenticate_ms.get(self._mechanism, 0)
        if reauthenticate_ms > 0:
            limits.append(reauthenticate_ms)
        return min(limits, default=None)

    def _fail(self, message: str, reason: str = "") -> SaslAnswer:
        self._state = SaslState.FAILED
        self._server = None
        return SaslAnswer(ErrorCode.sasl_authentication_failed, message, reason=reason or message)
