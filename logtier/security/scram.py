"""SCRAM (RFC 5802, RFC 7677) as a server: credentials that do not reveal the password, and the exchange; pure.

A credential is derived from a password, or from a salted password sent by AlterUserScramCredentials (KIP-554), and
contains neither.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headwater.logtier.runtime.random_bytes import RandomBytes, system_random_bytes
from headwater.logtier.security.sasl import AUTHORIZATION_ID_MESSAGE, AuthenticationError, InvalidTokenError, SaslStep

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
"""Limits of a credential, as in Kafka: fewer iterations ease guessing, more cost every client time."""

USER_NAME_LENGTH_MAX: Final = 256
"""Longest user name of a credential."""

SALT_BYTES_MAX: Final = 1024

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = tuple(_HASHES)

_NONCE_BYTES: Final = 24
_GS2_HEADER: Final = re.compile(r"([ny]|p=[A-Za-z0-9.-]+),(?:a=((?:[^,=\0]|=2C|=3D)*))?,")
_CLIENT_FIRST: Final = re.compile(r"n=((?:[^,=\0]|=2C|=3D)+),r=([!-+\--~]+)((?:,[A-Za-z]=[^,\0]+)*)")
_CLIENT_FINAL: Final = re.compile(r"(c=([A-Za-z0-9+/=]+),r=([!-+\--~]+)(?:,[A-Za-z]=[^,\0]+)*),p=([A-Za-z0-9+/=]+)")


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The stored credential of a password for one mechanism; it cannot be used to authenticate."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @staticmethod
    def from_password(
        mechanism: str, password: str, *, salt: bytes | None = None, iterations: int = ITERATIONS_MIN
    ) -> "ScramCredential":
        """Derive the credential of a password."""
        salt = system_random_bytes(24) if salt is None else salt
        salted = hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, iterations)
        return ScramCredential.from_salted_password(mechanism, salted, salt, iterations)

    @staticmethod
    def from_salted_password(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> "ScramCredential":
        """Derive the credential of a salted and hashed password."""
        name = _HASHES[mechanism]
        client_key = hmac.digest(salted, b"Client Key", name)
        stored_key = hashlib.new(name, client_key).digest()
        return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", name), iterations)


#: Properties of a credential visible before authentication: size of the salt in bytes, and iterations.
CredentialShape = tuple[int, int]

_USUAL_SHAPE: Final[CredentialShape] = (24, ITERATIONS_MIN)


def credential_shapes(credentials: Iterable[ScramCredential]) -> Sequence[CredentialShape]:
    """Return the distinct shapes of credentials, sorted.

    >>> one, other = (ScramCredential(bytes(size), b"", b"", 8192) for size in (24, 16))
    >>> credential_shapes([one, other, one])
    [(16, 8192), (24, 8192)]
    """
    return sorted({(len(credential.salt), credential.iterations) for credential in credentials})


UNKNOWN_USERS_KEY_BYTES: Final = 32


def made_up_credential(
    mechanism: str, user: str, key: bytes, shapes: Sequence[CredentialShape], random_bytes: RandomBytes
) -> ScramCredential:
    """Return the credential shown for an unknown user: constant per mechanism and name; no proof matches it.

    It has one of the shapes, with a separate salt for each. When a shape is added or removed, only unknown users of
    that shape change, as if their password had been changed.

    Args:
        key: A secret that outlives the broker; it reveals which users are unknown.
        shapes: The shapes of the existing credentials.
        random_bytes: Makes the key that no proof matches.
    """
    seed = hmac.digest(key, f"{mechanism}\0{user}".encode(), "sha256")
    drawn, (salt_bytes, iterations) = max(
        (hmac.digest(seed, b"%d %d" % shape, "sha256"), shape) for shape in shapes or (_USUAL_SHAPE,)
    )
    salt = hashlib.shake_256(drawn).digest(salt_bytes)
    return ScramCredential(salt, random_bytes(hashlib.new(_HASHES[mechanism]).digest_size), b"", iterations)


class ScramUsers:
    """The users known to the listeners.

    Args:
        users: Returns credentials by user and mechanism: the same object until a credential changes.
        unknown_users_key: Returns the cluster's secret from which the salts of unknown users are derived.
        random_bytes: Source of nonces.
    """

    def __init__(
        self,
        users: Callable[[], Mapping[str, Mapping[str, ScramCredential]]],
        unknown_users_key: Callable[[], bytes],
        random_bytes: RandomBytes = system_random_bytes,
    ) -> None:
        self._random_bytes = random_bytes
        self._users = users
        self._unknown_users_key = unknown_users_key
        self._known: Mapping[str, Mapping[str, ScramCredential]] | None = None
        self._shapes: dict[str, Sequence[CredentialShape]] = {}

    def credential(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return the credential of a user for a mechanism, or None."""
        return self._users().get(user, {}).get(mechanism)

    def made_up(self, mechanism: str, user: str) -> ScramCredential:
        """Return the credential shown for an unknown user."""
        return made_up_credential(
            mechanism, user, self._unknown_users_key(), self.shapes(mechanism), self._random_bytes
        )

    def nonce(self) -> str:
        """Return the server's part of an exchange's nonce."""
        return base64.urlsafe_b64encode(self._random_bytes(_NONCE_BYTES)).decode().rstrip("=")

    def shapes(self, mechanism: str) -> Sequence[CredentialShape]:
        """Return the shapes of a mechanism's credentials."""
        users = self._users()
        if users is not self._known:
            self._known = users
            self._shapes = {
                name: credential_shapes(of_user[name] for of_user in users.values() if name in of_user)
                for name in MECHANISMS
            }
        return self._shapes[mechanism]


class ScramServer:
    """One exchange: the client's first message, the server's first, the client's final, the server's final.

    The exchange does not reveal whether the user exists: an unknown user gets a salt and an iteration count, constant
    per name, and fails as with a wrong password.

    Args:
        users: The known users, and the credentials shown for unknown ones.
    """

    __slots__ = (
        "_auth_message",
        "_credential",
        "_gs2_header",
        "_hash",
        "_known",
        "_mechanism",
        "_nonce",
        "_user",
        "_users",
    )

    def __init__(
        self,
        mechanism: str,
        users: ScramUsers,
    ) -> None:
        self._hash = _HASHES[mechanism]
        self._mechanism = mechanism
        self._users = users
        self._nonce = ""
        self._user = ""
        self._gs2_header = b""
        self._auth_message = b""
        self._credential: ScramCredential | None = None
        self._known = False

    async def evaluate(self, token: bytes) -> SaslStep:
        """Process the client's next message."""
        return self._first(token) if self._credential is None else self._final(token, self._credential)

    def _first(self, token: bytes) -> SaslStep:
        text = _text(token)
        header = _GS2_HEADER.match(text)
        if header is None:
            raise InvalidTokenError("the first message has no GS2 header")
        if header[1].startswith("p"):
            raise InvalidTokenError("channel binding is not supported")
        first = _CLIENT_FIRST.fullmatch(text, header.end())
        if first is None:
            raise InvalidTokenError("the first message is not of the form n=user,r=nonce")
        self._user = _unescape(first[1])
        if header[2] and _unescape(header[2]) != self._user:
            raise AuthenticationError(AUTHORIZATION_ID_MESSAGE)
        credential = self._users.credential(self._mechanism, self._user)
        self._known = credential is not None
        # Derived for known users as well: otherwise the time would reveal them.
        made_up = self._users.made_up(self._mechanism, self._user)
        self._credential = credential or made_up
        self._gs2_header = text[: header.end()].encode()
        self._nonce = first[2] + self._users.nonce()
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._auth_message = f"{text[header.end() :]},{answer},".encode()
        return SaslStep(answer.encode())

    def _final(self, token: bytes, credential: ScramCredential) -> SaslStep:
        final = _CLIENT_FINAL.fullmatch(_text(token))
        if final is None:
            raise InvalidTokenError("the final message is not of the form c=...,r=nonce,p=proof")
        if _base64(final[2]) != self._gs2_header:
            raise InvalidTokenError("the final message repeats another GS2 header")
        if not hmac.compare_digest(final[3].encode(), self._nonce.encode()):
            raise InvalidTokenError("the final message has another nonce")
        auth_message = self._auth_message + final[1].encode()
        signature = hmac.digest(credential.stored_key, auth_message, self._hash)
        proof = _base64(final[4])
        if len(proof) != len(signature):
            raise InvalidTokenError("the proof has another length than the hash")
        client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=True))
        matches = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key)
        if not (matches and self._known):
            raise InvalidTokenError("the user or the password is wrong")
        verifier = base64.b64encode(hmac.digest(credential.server_key, auth_message, self._hash))
        return SaslStep(b"v=" + verifier, user=self._user)


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise InvalidTokenError("the message is not UTF-8") from None


def _unescape(name: str) -> str:
    """Decode a name without SCRAM's escapes.

    >>> _unescape("a=2Cb=3Dc")
    'a,b=c'
    """
    return name.replace("=2C", ",").replace("=3D", "=")


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise InvalidTokenError("a part of the message is not base64") from None
