"""How many lines about failed logins, other connections that came to nothing, and refused requests a log gets; pure.

Each of them is worth a line while they are few. Somebody who tries passwords, or a client with a wrong one that never
gives up, would fill the disk with them.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

WINDOW_MS: Final = 60_000
"""Lines are counted for so long."""

LINES_MAX: Final = 20
"""Lines of one address in that time: enough to see what is wrong."""

ADDRESSES_MAX: Final = 250
"""Addresses that are told apart at a time; all others count as one."""

OTHERS: Final = "other addresses"


class Withheld(NamedTuple):
    """Failures that were not logged one by one."""

    address: str
    failures: int


@dataclass(slots=True)
class _Window:
    begun_ms: int
    failures: int = 0


class FailureLines:
    """Decides which failures are logged, by address.

    Invariant: every failure is told, by a line of its own or in a `Withheld`. Times are milliseconds of a
    monotonic clock; `due` is to be called every few seconds.

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
        """Count a failure; whether it gets a line of its own."""
        window = self._windows.get(address)
        if window is None:
            if len(self._windows) >= ADDRESSES_MAX:
                address = OTHERS
            window = self._windows.setdefault(address, _Window(now_ms))
        window.failures += 1
        return window.failures <= LINES_MAX

    def due(self, now_ms: int) -> list[Withheld]:
        """What was withheld in the windows that are over, to be told now."""
        told = []
        for address, window in list(self._windows.items()):
            if now_ms - window.begun_ms < WINDOW_MS:
                break
            del self._windows[address]
            if window.failures > LINES_MAX:
                told.append(Withheld(address, window.failures - LINES_MAX))
        return told
