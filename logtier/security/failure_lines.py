"""Limits log lines about failed authentications, other failed connections and rejected requests; pure.

Each line is useful while there are few. An attacker who tries passwords, or a client that retries forever with a wrong
one, would otherwise fill the disk.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

WINDOW_MS: Final = 60_000
"""Time over which lines are counted."""

LINES_MAX: Final = 20
"""Lines per address in that time: enough to see the problem."""

ADDRESSES_MAX: Final = 250
"""Addresses counted separately at a time; all others count as one."""

OTHERS: Final = "other addresses"


class Withheld(NamedTuple):
    """The number of failures of an address that were not logged."""

    address: str
    failures: int


@dataclass(slots=True)
class _Window:
    begun_ms: int
    failures: int = 0


class FailureLines:
    """Decides which failures are logged, by address.

    Invariant: every failure is reported, by its own line or in a `Withheld`. Times are milliseconds of a monotonic
    clock; `due` must be called every few seconds.

    >>> lines = FailureLines()
    >>> [lines.admit("192.0.2.1", at_ms) for at_ms in range(22)].count(True)
    20
    >>> lines.due(WINDOW_MS - 1), lines.due(WINDOW_MS), lines.due(WINDOW_MS)
    ([], [Withheld(address='192.0.2.1', failures=2)], [])
    """

    def __init__(self) -> None:
        # Oldest first.
        self._windows: dict[str, _Window] = {}

    def admit(self, address: str, now_ms: int) -> bool:
        """Count a failure; return whether to log it."""
        window = self._windows.get(address)
        if window is None:
            if len(self._windows) >= ADDRESSES_MAX:
                address = OTHERS
            window = self._windows.setdefault(address, _Window(now_ms))
        window.failures += 1
        return window.failures <= LINES_MAX

    def due(self, now_ms: int) -> list[Withheld]:
        """Return the withheld failures of finished windows, to be logged now."""
        told = []
        for address, window in list(self._windows.items()):
            if now_ms - window.begun_ms < WINDOW_MS:
                break
            del self._windows[address]
            if window.failures > LINES_MAX:
                told.append(Withheld(address, window.failures - LINES_MAX))
        return told
