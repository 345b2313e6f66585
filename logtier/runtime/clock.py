"""Time as an interface, so that a simulation can provide its own clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time for the log tier; no other code of the log tier reads a clock."""

    def now_ms(self) -> int:
        """Return wall-clock time in milliseconds since the epoch, for record timestamps and retention."""

    def monotonic_ms(self) -> int:
        """Return monotonic time in milliseconds, for timeouts and intervals."""


class SystemClock:
    """Clocks of the operating system."""

    def now_ms(self) -> int:
        """Return wall-clock time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return monotonic time in milliseconds."""
        return time.monotonic_ns() // 1_000_000
