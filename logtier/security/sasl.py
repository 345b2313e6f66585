"""SASL as a server: the interface of every mechanism, and PLAIN (RFC 4616)."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

AUTHORIZATION_ID_MESSAGE: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


class AuthenticationError(Exception):
    """The authentication failed; the message is for the client, and reveals nothing confidential."""


class InvalidTokenError(Exception):
    """A token is invalid for the mechanism. The message is for the log: the client only gets a general failure."""


@dataclass(frozen=True, slots=True)
class SaslStep:
    """The result of a token.

    Attributes:
        token: The server's token; may be empty.
        user: The authenticated user; None while the exchange continues.
        expires_ms: Expiry of the credential (wall clock); None for never.
        refused: Reason of a failure reported in `token`, for the log; the client sends a last message.
    """

    token: bytes
    user: str | None = None
    expires_ms: int | None = None
    refused: str | None = None


class SaslServer(Protocol):
    """One exchange of one mechanism."""

    async def evaluate(self, token: bytes) -> SaslStep:
        """Process the client's next token; AuthenticationError or InvalidTokenError end the exchange."""
        ...


class PlainServer:
    """PLAIN: one token with user name and password."""

    __slots__ = ("_users",)

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users

    async def evaluate(self, token: bytes) -> SaslStep:
        """Process the only token."""
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
        # The check of an unknown name takes as long as that of a wrong password.
        expected = self._users.get(user)
        matches = hmac.compare_digest(password.encode(), (expected or "").encode())
        if expected is None or not matches:
            raise AuthenticationError("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != user:
            raise AuthenticationError(AUTHORIZATION_ID_MESSAGE)
        return SaslStep(b"", user=user)
