"""What a connection may ask when, and what becomes of tokens."""

import asyncio

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from headwater.logtier.security.sasl import PlainServer, SaslServer, SaslStep
from headwater.logtier.security.sasl_session import (
    API_VERSIONS,
    BEFORE_AUTHENTICATION_MAX,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TOKENS_MAX,
    SaslAnswer,
    SaslListener,
    SaslSession,
)

METADATA = 3
USERS = {"alice": "alice-secret", "bob": "bob-secret"}
ALICE = b"\0alice\0alice-secret"


class Expiring:
    """A mechanism whose token is the time at which the credential ends."""

    async def evaluate(self, token: bytes) -> SaslStep:
        return SaslStep(b"", user="alice", expires_ms=int(token))


class Endless:
    async def evaluate(self, token: bytes) -> SaslStep:
        return SaslStep(b"more")


def session(reauthenticate_ms: int = 0) -> SaslSession:
    servers: dict[str, type[SaslServer]] = {"EXPIRING": Expiring, "ENDLESS": Endless}
    listener = SaslListener(
        {"PLAIN": lambda: PlainServer(USERS), **servers},
        {"PLAIN": reauthenticate_ms, "EXPIRING": reauthenticate_ms},
    )
    return SaslSession(listener)


def authenticate(sasl: SaslSession, token: bytes = ALICE, now_ms: int = 0, wall_ms: int = 0) -> SaslAnswer:
    return asyncio.run(sasl.authenticate(token, now_ms, wall_ms))


def test_a_handshake_and_a_token_authenticate() -> None:
    sasl = session()
    sasl.admit(API_VERSIONS, "ApiVersions", 0)
    sasl.admit(SASL_HANDSHAKE, "SaslHandshake", 0)
    assert sasl.principal == "User:ANONYMOUS"
    assert sasl.handshake("PLAIN", 1, 0) == ErrorCode.none
    sasl.admit(SASL_AUTHENTICATE, "SaslAuthenticate", 0)
    assert authenticate(sasl) == SaslAnswer()
    assert sasl.principal == "User:alice"
    sasl.admit(METADATA, "Metadata", 10**12)


@pytest.mark.parametrize("api_key", [METADATA, SASL_AUTHENTICATE, 0, 1])
def test_whatever_comes_before_the_handshake_ends_the_connection(api_key: int) -> None:
    with pytest.raises(ProtocolViolationError, match="before authentication"):
        session().admit(api_key, "Metadata", 0)


def test_requests_before_authentication_are_counted() -> None:
    sasl = session()
    for _ in range(BEFORE_AUTHENTICATION_MAX):
        sasl.admit(API_VERSIONS, "ApiVersions", 0)
    with pytest.raises(ProtocolViolationError, match="more than"):
        sasl.admit(API_VERSIONS, "ApiVersions", 0)


@pytest.mark.parametrize("api_key", [METADATA, API_VERSIONS, SASL_HANDSHAKE])
def test_anything_but_a_token_during_the_exchange_is_an_illegal_state(api_key: int) -> None:
    sasl = session()
    sasl.handshake("PLAIN", 1, 0)
    with pytest.raises(KafkaError) as caught:
        sasl.admit(api_key, "Metadata", 0)
    assert caught.value.code == ErrorCode.illegal_sasl_state
    assert sasl.has_failed


def test_a_mechanism_that_there_is_not_ends_the_connection_after_the_answer() -> None:
    sasl = session()
    assert sasl.handshake("GSSAPI", 1, 0) == ErrorCode.unsupported_sasl_mechanism
    assert sasl.has_failed
    assert sasl.mechanisms == ("PLAIN", "EXPIRING", "ENDLESS")


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0alice-secret", "Authentication failed: Invalid username or password"),
        (b"\0\0alice-secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"bob\0alice\0alice-secret", "Client requested an authorization id that is different from username"),
        (b"alice", "due to invalid credentials with SASL mechanism PLAIN"),
        (b"\xff\0\0", "due to invalid credentials with SASL mechanism PLAIN"),
    ],
)
def test_plain_refuses_with_kafkas_words_and_without_the_password(token: bytes, message: str) -> None:
    sasl = session()
    sasl.handshake("PLAIN", 1, 0)
    answer = authenticate(sasl, token)
    assert answer.error == ErrorCode.sasl_authentication_failed
    assert answer.message is not None
    assert message in answer.message
    assert "secret" not in answer.message + answer.reason
    assert sasl.has_failed
    assert sasl.principal == "User:ANONYMOUS"


def test_an_exchange_without_end_is_ended() -> None:
    sasl = session()
    sasl.handshake("ENDLESS", 1, 0)
    for _ in range(TOKENS_MAX):
        assert authenticate(sasl, b"").error == ErrorCode.none
    assert authenticate(sasl, b"").error == ErrorCode.sasl_authentication_failed


def test_a_session_ends_in_time_and_may_be_renewed_before_or_after() -> None:
    sasl = session(reauthenticate_ms=60_000)
    sasl.handshake("PLAIN", 1, 0)
    assert authenticate(sasl).session_lifetime_ms == 60_000
    sasl.admit(METADATA, "Metadata", 59_999)
    with pytest.raises(ProtocolViolationError, match="the session of User:alice expired before Metadata"):
        sasl.admit(METADATA, "Metadata", 60_000)
    sasl.admit(SASL_HANDSHAKE, "SaslHandshake", 60_000)
    assert sasl.handshake("PLAIN", 1, 60_000) == ErrorCode.none
    assert authenticate(sasl, now_ms=60_000).session_lifetime_ms == 60_000
    sasl.admit(METADATA, "Metadata", 100_000)


@pytest.mark.parametrize(
    ("expires_ms", "limit_ms", "lifetime_ms"), [(5000, 0, 4000), (5000, 3000, 3000), (5000, 9000, 4000), (10, 0, 0)]
)
def test_a_session_ends_with_its_credential_or_sooner(expires_ms: int, limit_ms: int, lifetime_ms: int) -> None:
    sasl = session(limit_ms)
    sasl.handshake("EXPIRING", 1, 0)
    assert authenticate(sasl, str(expires_ms).encode(), 70, 1000).session_lifetime_ms == lifetime_ms
    with pytest.raises(ProtocolViolationError, match="expired"):
        sasl.admit(METADATA, "Metadata", 70 + lifetime_ms)


def test_nobody_becomes_another_by_authenticating_again() -> None:
    sasl = session()
    sasl.handshake("PLAIN", 1, 0)
    authenticate(sasl)
    sasl.handshake("PLAIN", 1, 5000)
    answer = authenticate(sasl, b"\0bob\0bob-secret")
    assert answer.error == ErrorCode.sasl_authentication_failed
    assert answer.message == "Cannot change principals during re-authentication from User.alice: User.bob"


def test_the_mechanism_stays_the_same_when_authenticating_again() -> None:
    sasl = session()
    sasl.handshake("PLAIN", 1, 0)
    authenticate(sasl)
    assert sasl.handshake("EXPIRING", 1, 5000) == ErrorCode.none
    answer = authenticate(sasl, b"1")
    assert answer.message is not None
    assert "is not supported for re-authentication of mechanism 'PLAIN'" in answer.message


def test_authenticating_again_at_once_is_refused_and_the_session_stays() -> None:
    sasl = session()
    sasl.handshake("PLAIN", 1, 0)
    authenticate(sasl)
    assert sasl.handshake("PLAIN", 1, 5000) == ErrorCode.none
    authenticate(sasl, now_ms=5000)
    assert sasl.handshake("PLAIN", 1, 5999) == ErrorCode.illegal_sasl_state
    assert sasl.is_authenticated


def test_after_a_handshake_of_version_0_tokens_have_no_header() -> None:
    sasl = session()
    sasl.handshake("PLAIN", 0, 0)
    assert sasl.takes_raw_tokens
    authenticate(sasl)
    assert not sasl.takes_raw_tokens
