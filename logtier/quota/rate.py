"""What was recorded over the last windows of time, as a rate a second. Pure."""

from collections import deque


class WindowedRate:
    """A sum over `windows` windows of `window_ms`, the newest of them not over yet, divided by the time they span.

    As in Kafka, the time counts as at least all windows but one, so that a burst at the start is judged mildly and a
    client is never measured over an instant.
    """

    def __init__(self, windows: int, window_ms: int) -> None:
        self._windows = windows
        self._window_ms = window_ms
        self._samples: deque[tuple[int, float]] = deque()
        self._total = 0.0

    def record(self, value: float, now_ms: int) -> None:
        """Count a value; a negative one takes back what was counted at the same time."""
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self._window_ms:
            start_ms, total = samples[-1]
            samples[-1] = (start_ms, total + value)
        else:
            samples.append((now_ms, value))
        self._total += value
        self._forget(now_ms)

    def rate(self, now_ms: int) -> float:
        """The rate a second at a time."""
        self._forget(now_ms)
        return self._total / (self._span_ms(now_ms) / 1000)

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """How long nothing may be recorded for the rate to come down to a limit; 0 where it is not above it.

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
        """Whether nothing that counts is left."""
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
