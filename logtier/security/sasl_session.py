"""Authentication on one connection: what may be asked when, who the client is, until when; sans-IO.

As Kafka's: SaslHandshake names the mechanism, SaslAuthenticate carries the tokens (KIP-152), or, after a handshake of
version 0, frames that are nothing but tokens. Who is authenticated may do it again (KIP-368), with the same mechanism
and as the same user.
"""

import enum
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headwater.logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from headwater.logtier.security.failure_lines import FailureLines
from headwater.logtier.security.sasl import AuthenticationError, InvalidTokenError, SaslServer

ANONYMOUS: Final = "User:ANONYMOUS"
"""Who has not said who it is."""

SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36

REAUTHENTICATION_PAUSE_MS: Final = 1000
"""A client authenticates at most so often; more is refused, as by Kafka."""

TOKENS_MAX: Final = 16
"""Tokens of one exchange; SCRAM has two."""

BEFORE_AUTHENTICATION_MAX: Final = 16
"""Requests before the handshake is over; a client needs two, one that guesses at versions some more."""


def share_owner(principal: str, host: str) -> Hashable:
    """Whose share of what clients have in common a client's requests take.

    Those without a name are told apart by where they are.

    >>> share_owner("User:alice", "10.0.0.1") == share_owner("User:alice", "10.0.0.2")
    True
    >>> share_owner(ANONYMOUS, "10.0.0.1") == share_owner(ANONYMOUS, "10.0.0.2")
    False
    """
    return (principal, host if principal == ANONYMOUS else "")


class SaslState(enum.Enum):
    """Where a connection is."""

    HANDSHAKE = "handshake"
    AUTHENTICATING = "authenticating"
    AUTHENTICATED = "authenticated"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SaslListener:
    """What all connections of a listener share.

    Attributes:
        servers: Makes the exchange of a mechanism, by the mechanisms that are enabled, in the order clients are told.
        reauthenticate_ms: How long a session lasts, by mechanism; 0 for ever (`connections.max.reauth.ms`).
        failure_delay_ms: How long a failure is kept from the client.
        receive_bytes_max: Largest request before authentication.
        failures: Which failed logins are logged one by one.
    """

    servers: Mapping[str, Callable[[], SaslServer]]
    reauthenticate_ms: Mapping[str, int]
    failure_delay_ms: int = 100
    receive_bytes_max: int = 524_288
    failures: FailureLines = field(default_factory=FailureLines)


@dataclass(frozen=True, slots=True)
class SaslAnswer:
    """What a token is answered with. `message` and `reason` tell a failure to the client and to our log."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    token: bytes = b""
    session_lifetime_ms: int = 0
    reason: str = ""


class SaslSession:
    """One connection's authentication.

    Invariant: `principal` is the authenticated one whenever the state is AUTHENTICATED, and stays it while the client
    authenticates again.
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
        """What the client may choose from."""
        return tuple(self.listener.servers)

    @property
    def mechanism(self) -> str | None:
        """What the client chose."""
        return self._mechanism

    @property
    def is_authenticated(self) -> bool:
        """Whether everything may be asked now."""
        return self._state is SaslState.AUTHENTICATED

    @property
    def is_authenticating(self) -> bool:
        """Whether a token is expected."""
        return self._state is SaslState.AUTHENTICATING

    @property
    def has_failed(self) -> bool:
        """Whether the connection is to be closed once its last answer is sent."""
        return self._state is SaslState.FAILED

    @property
    def takes_raw_tokens(self) -> bool:
        """Whether the next frame is a token and nothing else."""
        return self._state is SaslState.AUTHENTICATING and not self._framed

    def admit(self, api_key: int, name: str, now_ms: int) -> None:
        """Let a request pass, or not.

        Raises:
            ProtocolViolationError: the connection is to be closed.
            KafkaError(illegal_sasl_state): it is to be closed after this answer.
        """
        if self._state is SaslState.AUTHENTICATED:
            if self._expires_ms is not None and now_ms >= self._expires_ms and api_key != SASL_HANDSHAKE:
                raise ProtocolViolationError(f"the session of {self.principal} has expired; {name} came after it")
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
                f"{name} came before authentication: the listener asks for SASL, and the client may not be set to it"
            )
        if self._requests > BEFORE_AUTHENTICATION_MAX:
            raise ProtocolViolationError(f"more than {BEFORE_AUTHENTICATION_MAX} requests before authentication")

    def handshake(self, mechanism: str, version: int, now_ms: int) -> ErrorCode:
        """Choose the mechanism of the tokens to come."""
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
        """Take the client's next token.

        Args:
            now_ms: Monotonic.
            wall_ms: The time that credentials expire by.
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
