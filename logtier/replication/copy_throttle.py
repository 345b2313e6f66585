"""The rate limit of replica copies between log folders, shared by all copies. Pure."""

from math import ceil
from typing import Final

from headwater.logtier.config.definition import LONG_MAX

# Copied at a time, in seconds of the rate: small enough for an even rate, large enough for few syncs.
_PIECE_S: Final = 0.1
# Unused rate that may be used after a pause, in seconds.
_BURST_S: Final = 1.0
# Longest wait, after which a changed rate takes effect.
_WAIT_MS_MAX: Final = 200


class CopyThrottle:
    """A byte budget that refills at a steady rate (`replica.alter.log.dirs.io.max.bytes.per.second`).

    Times are milliseconds of a monotonic clock.

    >>> throttle = CopyThrottle()
    >>> throttle.allow(9_000, 0)
    9000
    >>> throttle.change_rate(1_000, 0)
    >>> throttle.allow(9_000, 0), throttle.wait_ms(9_000, 0)
    (0, 100)
    >>> throttle.allow(9_000, 500), throttle.allow(9_000, 550), throttle.wait_ms(9_000, 550)
    (500, 0, 50)
    """

    def __init__(self) -> None:
        self._rate = LONG_MAX
        self._bytes = 0.0
        self._refilled_ms = 0

    @property
    def is_limited(self) -> bool:
        """Whether there is a rate limit."""
        return self._rate < LONG_MAX

    def change_rate(self, bytes_per_second: int, now_ms: int) -> None:
        """Set the rate, in bytes per second; the greatest LONG means no limit."""
        if bytes_per_second != self._rate:
            if not self.is_limited:
                self._bytes = 0.0
                self._refilled_ms = now_ms
            self._refill(now_ms)
            self._rate = bytes_per_second

    def allow(self, wanted: int, now_ms: int) -> int:
        """Take up to `wanted` bytes that may be copied now; 0 if too few are available."""
        if not self.is_limited:
            return wanted
        self._refill(now_ms)
        if self._bytes < self._piece(wanted):
            return 0
        allowed = min(wanted, int(self._bytes))
        self._bytes -= allowed
        return allowed

    def overdraw(self, size: int) -> None:
        """Count bytes copied beyond the budget: later copies wait longer."""
        self._bytes -= size

    def wait_ms(self, wanted: int, now_ms: int) -> int:
        """Return the time until the next call of `allow`, in ms."""
        self._refill(now_ms)
        missing = self._piece(wanted) - self._bytes
        if missing <= 0 or not self.is_limited:
            return 0
        return min(_WAIT_MS_MAX, ceil(missing * 1000 / self._rate)) if self._rate else _WAIT_MS_MAX

    def _piece(self, wanted: int) -> float:
        return min(wanted, max(1, int(self._rate * _PIECE_S)))

    def _refill(self, now_ms: int) -> None:
        elapsed_s = max(0, now_ms - self._refilled_ms) / 1000
        self._bytes = min(self._bytes + self._rate * elapsed_s, max(1.0, self._rate * _BURST_S))
        self._refilled_ms = now_ms
