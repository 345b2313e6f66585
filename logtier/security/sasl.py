"""SASL as a server: what every mechanism is asked and answers, and PLAIN (RFC 4616)."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

AUTHORIZATION_ID_MESSAGE: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


class AuthenticationError(Exception):
    """The client is not who it says; the message is for the client, and tells nothing that it must not know."""


class InvalidTokenError(Exception):
    """A token that the mechanism cannot take. The message is for our log: the client is told only that it failed."""


@dataclass(frozen=True, slots=True)
class SaslStep:
    """What a token leads to.

    Attributes:
        token: The server's answer; may be empty.
        user: Who the client is; None while the exchange goes on.
        expires_ms: When the credential ends (wall clock); None for never.
        refused: Why the client was refused in `token`, for our log; it still has the last word.
    """

    token: bytes
    user: str | None = None
    expires_ms: int | None = None
    refused: str | None = None


class SaslServer(Protocol):
    """One exchange of one mechanism."""

    async def evaluate(self, token: bytes) -> SaslStep:
        """Take the client's next token: AuthenticationError or InvalidTokenError end the exchange."""
        ...


class PlainServer:
    """PLAIN: one token with the name and the password."""

    __slots__ = ("_users",)

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users

    async def evaluate(self, token: bytes) -> SaslStep:
        """Take the one token there is."""
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise InvalidTokenError("the token is not UTF-8") from None
        if len(parts) != 3:
            raise InvalidTokenError(f"expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise AuthenticationError("Authentication failed: username not specified")
        if not password:
            raise AuthenticationError("Authentication failed: password not specified")
        # A name that is not known takes as long as a wrong password.
        expected = self._users.get(user)
        matches = hmac.compare_digest(password.encode(), (expected or "").encode())
        if expected is None or not matches:
            raise AuthenticationError("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != user:
            raise AuthenticationError(AUTHORIZATION_ID_MESSAGE)
        return SaslStep(b"", user=user)
