"""A token bucket: steady refill, bursts of use (KIP-599). Pure."""


class TokenBucket:
    """Refills by `rate` tokens a second up to the tokens of `burst_s` seconds; may be overdrawn. Initially full.

    >>> bucket = TokenBucket(2, burst_s=10, now_ms=0)
    >>> bucket.take(24, 0)
    >>> bucket.wait_ms(0), bucket.wait_ms(1_000), bucket.wait_ms(2_000)
    (2000, 1000, 0)
    """

    def __init__(self, rate: float, *, burst_s: float, now_ms: int) -> None:
        self.rate = rate
        self._burst_s = burst_s
        self._tokens = rate * burst_s
        self._refilled_ms = now_ms

    def change_rate(self, rate: float, now_ms: int) -> None:
        """Refill at another rate from now on."""
        self._refill(now_ms)
        self.rate = rate
        self._tokens = min(self._tokens, rate * self._burst_s)

    def take(self, tokens: float, now_ms: int) -> None:
        """Take tokens, even beyond the available ones."""
        self._refill(now_ms)
        self._tokens -= tokens

    def available(self, now_ms: int) -> float:
        """Return the tokens that are there; negative if the bucket is overdrawn."""
        self._refill(now_ms)
        return self._tokens

    def wait_ms(self, now_ms: int) -> int:
        """Return the time until the bucket is no longer overdrawn, in ms; 0 if it is not."""
        self._refill(now_ms)
        return max(0, round(-self._tokens / self.rate * 1000))

    def is_full(self, now_ms: int) -> bool:
        """Whether the bucket is full, as a new one."""
        self._refill(now_ms)
        return self._tokens >= self.rate * self._burst_s

    def _refill(self, now_ms: int) -> None:
        elapsed_s = max(0, now_ms - self._refilled_ms) / 1000
        self._tokens = min(self._tokens + self.rate * elapsed_s, self.rate * self._burst_s)
        self._refilled_ms = now_ms
