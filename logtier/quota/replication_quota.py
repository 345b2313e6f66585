"""The quota of throttled replication on one side, leader or follower (KIP-73). Pure."""

from math import ceil
from typing import Final

from headwater.logtier.config.definition import LONG_MAX
from headwater.logtier.quota.token_bucket import TokenBucket

# Unused rate that may be used after a pause, in seconds.
_BURST_S: Final = 1.0
# Debt left by bytes that are not held up, in seconds of the rate.
_DEBT_S: Final = 1.0
# Longest wait, after which a changed rate takes effect.
_WAIT_MS_MAX: Final = 1_000


class ReplicationQuota:
    """Bytes that may be replicated at a steady rate; may be overdrawn by one answer, and by exempt ones by a second.

    Times are monotonic, in ms.

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
        #: None without a limit.
        self._bucket: TokenBucket | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is a rate limit."""
        return self._bucket is not None

    def change_rate(self, bytes_per_second: int, now_ms: int) -> None:
        """Set the rate, in bytes per second: the greatest LONG means no limit, 0 halts all."""
        if bytes_per_second == LONG_MAX:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(bytes_per_second, burst_s=_BURST_S, now_ms=now_ms)
        else:
            self._bucket.change_rate(bytes_per_second, now_ms)

    def record(self, size: int, now_ms: int, *, is_exempt: bool = False) -> None:
        """Count replicated bytes. Exempt ones, which the quota does not hold up, leave a debt of at most a second.

        All others would have to pay for them: after hours above the rate they would wait for hours.
        """
        if self._bucket is None:
            return
        if is_exempt:
            size = min(size, max(0, int(self._bucket.available(now_ms) + self._bucket.rate * _DEBT_S)))
        self._bucket.take(size, now_ms)

    def allowance(self, now_ms: int) -> int:
        """Return the bytes that may be replicated now; 0 while the quota is exceeded."""
        return LONG_MAX if self._bucket is None else max(0, int(self._bucket.available(now_ms)))

    def wait_ms(self, now_ms: int) -> int:
        """Return the time until a byte may be replicated, in ms, at most a second; 0 if one may now."""
        if self._bucket is None:
            return 0
        missing = 1 - self._bucket.available(now_ms)
        if missing <= 0:
            return 0
        rate = self._bucket.rate
        return min(_WAIT_MS_MAX, ceil(missing * 1000 / rate)) if rate else _WAIT_MS_MAX
