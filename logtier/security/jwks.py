"""The keys of tokens: a JWKS at a URL, fetched outside the event loop, cached and refreshed."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from headwater.logtier.runtime.clock import Clock

if TYPE_CHECKING:
    import jwt

logger = logging.getLogger(__name__)

JWKS_BYTES_MAX: Final = 1 << 20
"""Largest accepted response; a JWKS of ten keys has some kilobytes."""

KEYS_MAX: Final = 1000

FETCH_TIMEOUT_S: Final = 5
"""Time limit of a fetch; a token waits for at most one."""

UNKNOWN_KEY_PAUSE_MS: Final = 10_000
"""Shortest interval between fetches for tokens with unknown keys: any client can invent key ids."""

_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519"}


@dataclass(frozen=True, slots=True)
class RefreshPolicy:
    """The intervals of refreshes and retries (`sasl.oauthbearer.jwks.endpoint....`)."""

    refresh_ms: int = 3_600_000
    backoff_ms: int = 100
    backoff_max_ms: int = 10_000


class JwksError(Exception):
    """The keys could not be fetched."""


class JwksKeys:
    """The keys of one URL. Fetched keys stay until a later fetch succeeds: an outage of the URL ends no session.

    Invariant: at most one fetch is running.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        policy: RefreshPolicy,
        fetch: Callable[[str], bytes] | None = None,
    ) -> None:
        self._url = url
        self._clock = clock
        self._policy = policy
        self._fetch = fetch or fetch_jwks
        self._keys: dict[str | None, list[dict[str, Any]]] = {}
        self._made: dict[tuple[str | None, str], jwt.PyJWK] = {}
        self._fetched_ms: int | None = None
        self._next_try_ms = 0
        self._unknown_key_ms: int | None = None
        self._failures = 0
        self._refreshing: asyncio.Task[None] | None = None

    async def key(self, key_id: str | None, algorithm: str) -> "jwt.PyJWK | None":
        """Return the key of an id for an algorithm; without an id the only key that fits. None if there is none."""
        now_ms = self._clock.monotonic_ms()
        if self._fetched_ms is None:
            await self._refreshed(now_ms)
        elif now_ms - self._fetched_ms >= self._policy.refresh_ms:
            self._begin(now_ms)  # the present keys are used meanwhile
        known = self._find(key_id, algorithm)
        if known is None and (self._unknown_key_ms is None or now_ms - self._unknown_key_ms >= UNKNOWN_KEY_PAUSE_MS):
            self._unknown_key_ms = now_ms
            await self._refreshed(now_ms)
            known = self._find(key_id, algorithm)
        return known

    def start(self) -> None:
        """Begin to fetch the keys before the first token arrives."""
        self._begin(self._clock.monotonic_ms())

    def stop(self) -> None:
        """Cancel a running fetch."""
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def _refreshed(self, now_ms: int) -> None:
        refreshing = self._begin(now_ms)
        if refreshing is not None:
            await asyncio.shield(refreshing)

    def _begin(self, now_ms: int) -> Awaitable[None] | None:
        """Return the running fetch, or begin one unless the last one failed recently."""
        if self._refreshing is None and now_ms >= self._next_try_ms:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        return self._refreshing

    async def _refresh(self) -> None:
        try:
            keys = parse_jwks(await asyncio.to_thread(self._fetch, self._url))
        except JwksError as error:
            self._failures += 1
            pause_ms = min(self._policy.backoff_max_ms, self._policy.backoff_ms << min(self._failures - 1, 20))
            self._next_try_ms = self._clock.monotonic_ms() + pause_ms
            logger.warning("the keys of tokens cannot be fetched from %s: %s", self._url, error)
        else:
            self._keys = keys
            self._made.clear()
            self._failures = 0
            self._fetched_ms = self._clock.monotonic_ms()
        finally:
            self._refreshing = None

    def _find(self, key_id: str | None, algorithm: str) -> "jwt.PyJWK | None":
        import jwt

        if not isinstance(key_id, str):
            key_id = None
        made = self._made.get((key_id, algorithm))
        if made is not None:
            return made
        candidates = [key for keys in self._keys.values() for key in keys] if key_id is None else self._keys.get(key_id)
        fitting = [key for key in candidates or () if _fits(key, algorithm)]
        if len(fitting) != 1:
            return None
        try:
            made = jwt.PyJWK(fitting[0], algorithm)
        except (jwt.PyJWTError, ValueError, TypeError):
            logger.warning("the JWKS of %s holds a key that cannot be read", self._url)
            return None
        if len(self._made) >= KEYS_MAX:
            self._made.clear()
        self._made[key_id, algorithm] = made
        return made


def parse_jwks(data: bytes) -> dict[str | None, list[dict[str, Any]]]:
    """Return the keys of a JWKS by id; JwksError for invalid data.

    >>> list(parse_jwks(b'{"keys": [{"kty": "RSA", "kid": "a"}]}'))
    ['a']
    """
    try:
        document = orjson.loads(data)
        keys = document["keys"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise JwksError("the response is not a JWKS") from None
    if not isinstance(keys, list) or len(keys) > KEYS_MAX or not all(isinstance(key, dict) for key in keys):
        raise JwksError("the response is not a JWKS")
    found: dict[str | None, list[dict[str, Any]]] = {}
    for key in keys:
        key_id = key.get("kid")
        found.setdefault(key_id if isinstance(key_id, str) else None, []).append(key)
    return found


def fetch_jwks(url: str) -> bytes:
    """Read a JWKS; blocks. JwksError, also beyond `JWKS_BYTES_MAX` or `FETCH_TIMEOUT_S`."""
    import urllib.request  # takes a while to import, and few brokers need it
    from http.client import HTTPException
    from urllib.error import URLError

    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.FileHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    deadline = time.monotonic() + FETCH_TIMEOUT_S
    data = bytearray()
    try:
        with opener.open(url, timeout=FETCH_TIMEOUT_S) as response:
            while chunk := response.read1(1 << 16) if hasattr(response, "read1") else response.read(1 << 16):
                data += chunk
                if len(data) > JWKS_BYTES_MAX:
                    raise JwksError(f"the response is larger than {JWKS_BYTES_MAX} bytes")
                if time.monotonic() > deadline:
                    raise JwksError(f"the response took longer than {FETCH_TIMEOUT_S} s")
    except URLError as error:
        raise JwksError(str(error.reason)) from None
    except (OSError, ValueError) as error:
        raise JwksError(str(error)) from None
    except HTTPException as error:
        # The text of the error comes from the server, with any length and characters.
        raise JwksError(f"the response is not valid HTTP ({type(error).__name__})") from None
    return bytes(data)


def _fits(key: dict[str, Any], algorithm: str) -> bool:
    """Whether a key may verify signatures of an algorithm."""
    return (
        key.get("kty") == _KEY_TYPES[algorithm[:2]]
        and key.get("alg", algorithm) == algorithm
        and key.get("use", "sig") == "sig"
        and (algorithm not in _CURVES or key.get("crv") == _CURVES[algorithm])
    )
