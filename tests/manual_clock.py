"""A clock that a test sets."""

from __future__ import annotations


class ManualClock:
    """Time stands still until it is moved: milliseconds, the same for both kinds of time."""

    def __init__(self, ms: int = 1_000_000) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms
