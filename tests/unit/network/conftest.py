"""What the tests of connections share."""

from __future__ import annotations


class ManualClock:
    """Stands where a test puts it."""

    ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms
