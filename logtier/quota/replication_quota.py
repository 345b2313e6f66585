"""The quota of throttled replication on one side, leader or follower (KIP-73). Pure."""

from math import ceil
from typing import Final

from headwater.logtier.config.definition import LONG_MAX

# Unused rate that may be used after a pause, in seconds.
_BURST_S: Final = 1.0
# Longest wait, after which a changed rate takes effect.
_WAIT_MS_MAX: Final = 1_000


class ReplicationQuota:
    """Bytes that may be replicated at a steady rate; may be overdrawn by one answer. Times are monotonic, in ms.

    >>> quota = ReplicationQuota()
    >>> quota.allowance(0) == LONG_MAX
    True
    >>> quota.change_rate(1_000, 0)
    >>> quota.allowance(0)
    1000
    >>> quota.record(1_500, 0)
    >>> quota.allowance(0), quota.wait_ms(0), quota.wait_ms(501)
    (0, 501, 0)
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
        """Set the rate, in bytes per second: the greatest LONG means no limit, 0 halts all."""
        if bytes_per_second == self._rate:
            return
        if not self.is_limited:
            self._bytes, self._refilled_ms = bytes_per_second * _BURST_S, now_ms
        self._refill(now_ms)
        self._rate = bytes_per_second
        self._bytes = min(self._bytes, bytes_per_second * _BURST_S)

    def record(self, size: int, now_ms: int) -> None:
        """Count replicated bytes."""
        if self.is_limited:
            self._refill(now_ms)
            self._bytes -= size

    def allowance(self, now_ms: int) -> int:
        """Return the bytes that may be replicated now; 0 while the quota is exceeded."""
        if not self.is_limited:
            return LONG_MAX
        self._refill(now_ms)
        return max(0, int(self._bytes))

    def wait_ms(self, now_ms: int) -> int:
        """Return the time until a byte may be replicated, in ms, at most a second; 0 if one may now."""
        if self.allowance(now_ms):
            return 0
        missing = 1 - self._bytes
        return min(_WAIT_MS_MAX, ceil(missing * 1000 / self._rate)) if self._rate else _WAIT_MS_MAX

    def _refill(self, now_ms: int) -> None:
        elapsed_s = max(0, now_ms - self._refilled_ms) / 1000
        self._bytes = min(self._bytes + self._rate * elapsed_s, self._rate * _BURST_S)
        self._refilled_ms = now_ms
