"""SASL as a client: PLAIN (RFC 4616) and SCRAM (RFC 5802, RFC 7677); tokens in, tokens out, no I/O."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final, Protocol

from headwater.logtier.client.security import ClientSecurity

__all__ = ["PlainClient", "SaslClient", "SaslExchangeError", "ScramClient", "sasl_client"]

# Limits of SCRAM iterations. Fewer than the RFC's minimum would expose a password to an impostor of the broker; more
# than the maximum would let an impostor occupy the client. Kafka's credentials have 4,096 to 16,384.
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 1_000_000

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_SERVER_FIRST: Final = re.compile(r"r=([!-+\--~]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,9})(?:,[A-Za-z]=[^,\0]+)*")
_SERVER_FINAL: Final = re.compile(r"v=([A-Za-z0-9+/=]+)(?:,[A-Za-z]=[^,\0]+)*")
_SERVER_ERROR: Final = re.compile(r"e=([^,\0]{1,100})(?:,.*)?", re.DOTALL)


class SaslExchangeError(Exception):
    """A broker's token is not part of the exchange, or does not prove knowledge of the credential."""


class SaslClient(Protocol):
    """One exchange of a SASL mechanism."""

    def first(self) -> bytes:
        """Returns the client's first token."""
        ...

    def evaluate(self, challenge: bytes) -> bytes | None:
        """Returns the response to the broker's token, None at the end of the exchange; raises SaslExchangeError."""
        ...


def sasl_client(security: ClientSecurity, nonce: str, iterations_max: int = ITERATIONS_MAX) -> SaslClient:
    """Begins an exchange by the configured mechanism; `nonce` is printable, unpredictable and used only once."""
    if security.mechanism == "PLAIN":
        return PlainClient(security.username, security.password)
    return ScramClient(security.mechanism, security.username, security.password, nonce, iterations_max)


class PlainClient:
    """PLAIN: one token with the name and the password.

    >>> PlainClient("alice", "secret").first()
    b'\\x00alice\\x00secret'
    """

    __slots__ = ("_password", "_username")

    def __init__(self, username: str, password: str) -> None:
        self._username = username
        self._password = password

    def first(self) -> bytes:
        """Returns the token of name and password, without authorization id."""
        return f"\0{self._username}\0{self._password}".encode()

    def evaluate(self, challenge: bytes) -> bytes | None:
        """Ends the exchange: the broker's only token is empty."""
        if challenge:
            raise SaslExchangeError("the broker answers PLAIN by a challenge, which PLAIN does not have")
        return None


class ScramClient:
    """SCRAM: the client proves its password without sending it, and the broker proves knowledge of the credential."""

    __slots__ = ("_first_bare", "_hash", "_iterations_max", "_nonce", "_password", "_signature")

    def __init__(
        self, mechanism: str, username: str, password: str, nonce: str, iterations_max: int = ITERATIONS_MAX
    ) -> None:
        self._iterations_max = iterations_max
        self._hash = _HASHES[mechanism]
        self._password = password
        self._nonce = nonce
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={nonce}"
        self._signature: bytes | None = None

    def first(self) -> bytes:
        """Returns the token of name and nonce; Kafka has no channel binding."""
        return f"n,,{self._first_bare}".encode()

    def evaluate(self, challenge: bytes) -> bytes | None:
        """Answers the broker's first message with the proof of the password; checks the proof in its final message."""
        try:
            text = challenge.decode()
        except UnicodeDecodeError:
            raise SaslExchangeError("the broker's message is not UTF-8") from None
        if self._signature is None:
            return self._prove(text)
        refused = _SERVER_ERROR.fullmatch(text)
        if refused is not None:
            raise SaslExchangeError(f"the broker refuses: {refused[1]}")
        final = _SERVER_FINAL.fullmatch(text)
        if final is None or not hmac.compare_digest(_base64(final[1]), self._signature):
            raise SaslExchangeError("the broker does not prove that it knows the user's credential")
        return None

    def _prove(self, text: str) -> bytes:
        message = _SERVER_FIRST.fullmatch(text)
        if message is None:
            raise SaslExchangeError("the broker's first message is not of the form r=nonce,s=salt,i=iterations")
        nonce, salt, iterations = message[1], _base64(message[2]), int(message[3])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise SaslExchangeError("the broker's nonce does not continue ours")
        if not ITERATIONS_MIN <= iterations <= self._iterations_max:
            raise SaslExchangeError(
                f"the broker asks for {iterations} iterations; {ITERATIONS_MIN} to {self._iterations_max} are taken"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        without_proof = f"c=biws,r={nonce}"
        auth_message = f"{self._first_bare},{text},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(self._hash, client_key).digest(), auth_message, self._hash)
        proof = bytes(key ^ sign for key, sign in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(server_key, auth_message, self._hash)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SaslExchangeError("a part of the broker's message is not base64") from None
