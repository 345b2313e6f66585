"""When to try again: exponential back-off with jitter (KIP-144, KIP-580), and which failures are logged. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["ExponentialBackoff", "FailureNotices"]

#: Fraction by which a delay is shortened or lengthened, so that brokers that lost a peer together do not return
#: together.
JITTER: Final = 0.2
#: Doublings after which every delay is at its maximum.
_DOUBLINGS_MAX: Final = 30

#: Time after which a persistent failure is logged again.
REPEAT_MS: Final = 600_000
#: Different reasons remembered of one broker; more are a new one each time, and the oldest is dropped.
REASONS_MAX: Final = 16


class ExponentialBackoff:
    """Delays of consecutive failures.

    >>> backoff = ExponentialBackoff(50, 1000, lambda: 0.5)
    >>> [backoff.next_delay_ms() for _ in range(7)]
    [50, 100, 200, 400, 800, 1000, 1000]
    >>> backoff.reset()
    >>> backoff.next_delay_ms()
    50

    Args:
        draw: Draws a number from [0, 1).
    """

    def __init__(self, first_ms: int, max_ms: int, draw: Callable[[], float]) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._draw = draw
        self._failures = 0

    def next_delay_ms(self, max_ms: int | None = None) -> int:
        """Count a failure and return the delay after it, at most `max_ms`, by default the usual maximum."""
        delay_ms = self._first_ms << min(self._failures, _DOUBLINGS_MAX)
        self._failures += 1
        jitter = 1 + JITTER * (2 * self._draw() - 1)
        return min(round(delay_ms * jitter), self._max_ms if max_ms is None else max_ms)

    def reset(self) -> None:
        """Begin again, after a success."""
        self._failures = 0


class FailureNotices:
    """Decides which failures of the connections to one broker are logged: the first of each reason.

    >>> notices = FailureNotices()
    >>> [notices.is_due("wrong password", at_ms) for at_ms in (0, 1, REPEAT_MS - 1, REPEAT_MS)]
    [True, False, False, True]
    >>> notices.forget(), notices.forget(), notices.is_due("wrong password", REPEAT_MS + 1)
    (True, False, True)
    """

    def __init__(self) -> None:
        self._credential: object = None
        self._logged_ms: dict[str, int] = {}

    def use(self, credential: object) -> None:
        """Forget all failures if the credential is another one than before."""
        if credential != self._credential:
            self._credential = credential
            self._logged_ms.clear()

    def is_due(self, reason: str, now_ms: int) -> bool:
        """Whether to log a failure now."""
        logged_ms = self._logged_ms.get(reason)
        if logged_ms is not None and now_ms - logged_ms < REPEAT_MS:
            return False
        self._logged_ms.pop(reason, None)
        if len(self._logged_ms) >= REASONS_MAX:
            del self._logged_ms[next(iter(self._logged_ms))]
        self._logged_ms[reason] = now_ms
        return True

    def forget(self) -> bool:
        """Forget all failures, after a success; whether one was logged."""
        was_logged = bool(self._logged_ms)
        self._logged_ms.clear()
        return was_logged
