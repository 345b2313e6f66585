"""OAUTHBEARER (RFC 7628) as a server: tokens are JWTs, signed with a key of a JWKS."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from headwater.logtier.security.sasl import AuthenticationError, InvalidTokenError, SaslStep

if TYPE_CHECKING:
    import jwt

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by private keys only: with a shared secret, every verifier of tokens could create them."""

_CONTROL_A: Final = b"\x01"
_FIRST: Final = re.compile(r"n,(?:a=((?:[^,=\0\x01]|=2C|=3D)*))?,\x01(?:([A-Za-z]+=[^\0\x01]*\x01)*)\x01")
_AUTH: Final = re.compile(r"\x01auth=(\w+) +([-\w.~+/]+=*)\x01")


class TokenError(Exception):
    """A token is invalid; the reason is for the log, and reveals nothing of the token."""


class KeySource(Protocol):
    """The source of the keys of tokens."""

    async def key(self, key_id: str | None, algorithm: str) -> "jwt.PyJWK | None":
        """Return the key of an id for an algorithm of `ALGORITHMS`; None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Requirements of a token, besides a valid signature and expiry."""

    audience: Sequence[str] = ()
    issuer: str | None = None
    leeway_s: int = 30
    scope_claim: str = "scope"
    subject_claim: str = "sub"


@dataclass(frozen=True, slots=True)
class ValidToken:
    """The subject of a token, and its expiry (wall clock)."""

    subject: str
    expires_ms: int


class TokenValidator:
    """Checks tokens against the keys and the rules of one listener."""

    def __init__(self, keys: KeySource, rules: TokenRules) -> None:
        self._keys = keys
        self._rules = rules

    async def validate(self, token: str) -> ValidToken:
        """Return subject and expiry of a token; TokenError if the token is invalid."""
        import jwt

        rules = self._rules
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise TokenError(f"the token is not a JWT ({type(error).__name__})") from None
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise TokenError("the token is not signed by a private key")
        key = await self._keys.key(header.get("kid"), algorithm)
        if key is None:
            raise TokenError("the JWKS has no key for the token's key id and algorithm")
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=list(rules.audience) or None,
                issuer=rules.issuer,
                leeway=rules.leeway_s,
                options={"require": ["exp", "iat"], "verify_aud": bool(rules.audience), "verify_sub": False},
            )
        except (jwt.PyJWTError, TypeError, ValueError) as error:
            # The library's messages contain claims, never the token.
            raise TokenError(f"the token is rejected: {type(error).__name__}") from None
        subject = claims.get(rules.subject_claim)
        if not isinstance(subject, str) or not subject.strip():
            raise TokenError(f"the token has no {rules.subject_claim} claim")
        scope = claims.get(rules.scope_claim, "")
        if not isinstance(scope, str | list):
            raise TokenError(f"the token's {rules.scope_claim} claim is neither a text nor a list")
        expires = claims["exp"]
        if isinstance(expires, bool) or not isinstance(expires, int | float):
            raise TokenError("the token's exp claim is not a number")
        return ValidToken(subject.strip(), int(expires * 1000))


class OAuthBearerServer:
    """One exchange: the token; after a failure, the server's error, and the client's byte that ends the exchange."""

    __slots__ = ("_failed", "_validator")

    def __init__(self, validator: TokenValidator) -> None:
        self._validator = validator
        self._failed = False

    async def evaluate(self, token: bytes) -> SaslStep:
        """Process the client's next message."""
        if self._failed:
            if token == _CONTROL_A:
                raise AuthenticationError('{"status":"invalid_token"}')
            raise InvalidTokenError("the client continues after its token was rejected")
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise InvalidTokenError("the first message is not UTF-8") from None
        first = _FIRST.fullmatch(text)
        bearer = None if first is None else _AUTH.search(text)
        if first is None or bearer is None:
            raise InvalidTokenError("the first message has no auth=Bearer token")
        if bearer[1].lower() != "bearer":
            raise InvalidTokenError("the first message has another scheme than Bearer")
        try:
            valid = await self._validator.validate(bearer[2])
        except TokenError as error:
            self._failed = True
            return SaslStep(orjson.dumps({"status": "invalid_token"}), refused=str(error))
        asked = (first[1] or "").replace("=2C", ",").replace("=3D", "=")
        if asked and asked != valid.subject:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from the token's "
                "principal name"
            )
        return SaslStep(b"", user=valid.subject, expires_ms=valid.expires_ms)
