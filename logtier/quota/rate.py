"""A rate per second over the last time windows. Pure."""

from collections import deque


class WindowedRate:
    """The sum over `windows` windows of `window_ms`, including the present one, divided by the time they span.

    As in Kafka, the time counts as at least all windows but one, so that a burst at the start is not divided by a very
    short time.
    """

    def __init__(self, windows: int, window_ms: int) -> None:
        self._windows = windows
        self._window_ms = window_ms
        self._samples: deque[tuple[int, float]] = deque()
        self._total = 0.0

    def record(self, value: float, now_ms: int) -> None:
        """Record a value; a negative value reverts one recorded at the same time."""
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self._window_ms:
            start_ms, total = samples[-1]
            samples[-1] = (start_ms, total + value)
        else:
            samples.append((now_ms, value))
        self._total += value
        self._forget(now_ms)

    def rate(self, now_ms: int) -> float:
        """Return the rate per second at `now_ms`."""
        self._forget(now_ms)
        return self._total / (self._span_ms(now_ms) / 1000)

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """Return the time without records, in ms, until the rate falls to the limit; 0 if it is not above it.

        >>> rate = WindowedRate(11, 1000)
        >>> rate.record(30_000, 5_000)
        >>> rate.wait_ms(1_000, 5_000)
        20000
        """
        rate = self.rate(now_ms)
        if rate <= limit:
            return 0
        return round((rate - limit) / limit * self._span_ms(now_ms))

    def is_idle(self, now_ms: int) -> bool:
        """Whether no recorded value is within the windows."""
        self._forget(now_ms)
        return not self._samples

    def _span_ms(self, now_ms: int) -> int:
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0
        missing = self._windows - 1 - elapsed_ms // self._window_ms
        return max(elapsed_ms + max(missing, 0) * self._window_ms, 1)

    def _forget(self, now_ms: int) -> None:
        samples = self._samples
        oldest_ms = now_ms - self._windows * self._window_ms
        while samples and samples[0][0] <= oldest_ms:
            self._total -= samples.popleft()[1]
        if not samples:
            self._total = 0.0
