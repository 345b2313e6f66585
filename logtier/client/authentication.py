"""A client's SASL authentication: SaslHandshake names the mechanism, SaslAuthenticate carries its tokens (KIP-152)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from typing import Any, Final

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import AuthenticationError, UnsupportedMechanismError, error_name
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.sasl import ITERATIONS_MAX, SaslExchangeError, sasl_client
from headwater.logtier.client.security import ClientSecurity

__all__ = ["authenticate", "authentication_steps"]

# SCRAM, the longest exchange, sends two tokens. A broker that asks for more tokens violates the protocol.
TOKENS_MAX: Final = 4
_NONCE_BYTES: Final = 24


def authenticate(
    call: Callable[[Request[Any]], Any], version: Callable[[int], int], security: ClientSecurity, address: str
) -> int:
    """Authenticate; return the session's lifetime in milliseconds, 0 if it has no limit.

    `call` sends a request and returns its response, `version` returns the version to use of an API. Raises
    AuthenticationError, whose text holds no secret.
    """
    steps = authentication_steps(version, security, address, secrets.token_urlsafe(_NONCE_BYTES))
    request = next(steps)
    while True:
        response = call(request)
        try:
            request = steps.send(response)
        except StopIteration as end:
            return int(end.value)


def authentication_steps(
    version: Callable[[int], int],
    security: ClientSecurity,
    address: str,
    nonce: str,
    *,
    iterations_max: int = ITERATIONS_MAX,
) -> Generator[Request[Any], Any, int]:
    """Yield the requests of an authentication, each after the response to the previous one; return the lifetime.

    The sans-IO form of `authenticate`: the nonce must be printable, unpredictable and used only once.

    Args:
        iterations_max: Limit of SCRAM iterations, whose computation occupies the caller.
    """
    handshake = yield kio_request(
        ApiKey.SASL_HANDSHAKE, version(ApiKey.SASL_HANDSHAKE), {"mechanism": security.mechanism}
    )
    if handshake.error_code:
        offered = ", ".join(map(str, handshake.mechanisms)) or "none"
        raise UnsupportedMechanismError(
            f"{address} does not authenticate by {security.mechanism} "
            f"({error_name(int(handshake.error_code))}; its mechanisms: {offered[:200]})"
        )
    exchange = sasl_client(security, nonce, iterations_max)
    token: bytes | None = exchange.first()
    for _ in range(TOKENS_MAX):
        answer = yield kio_request(ApiKey.SASL_AUTHENTICATE, version(ApiKey.SASL_AUTHENTICATE), {"auth_bytes": token})
        if answer.error_code:
            reason = str(answer.error_message or error_name(int(answer.error_code)))
            raise AuthenticationError(f"{address} refuses user {security.username!r}: {reason[:500]}")
        try:
            token = exchange.evaluate(bytes(answer.auth_bytes))
        except SaslExchangeError as error:
            raise AuthenticationError(f"authentication at {address} by {security.mechanism} failed: {error}") from None
        if token is None:
            lifetime = getattr(answer, "session_lifetime", None)
            return 0 if lifetime is None else int(lifetime.total_seconds() * 1000)
    raise AuthenticationError(f"authentication at {address} by {security.mechanism} does not come to an end")
