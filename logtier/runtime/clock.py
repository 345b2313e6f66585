"""Time as an interface, so that a simulation can pass its own."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where the log tier takes its time from; nothing else in it reads a clock."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch: record timestamps, retention."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back: timeouts and intervals."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back."""
        return time.monotonic_ns() // 1_000_000
