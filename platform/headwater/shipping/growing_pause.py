"""Pauses that grow while an operation keeps failing (pure)."""

from __future__ import annotations


class GrowingPause:
    """Interval between attempts or reports: `first_s`, then doubled each time, up to `max_s`.

    >>> pause = GrowingPause(first_s=1, max_s=3)
    >>> pause.is_over(now_s=100)
    True
    >>> [pause.begin(now_s=100), pause.begin(now_s=101), pause.begin(now_s=103)]
    [1, 2, 3]
    >>> (pause.is_over(now_s=105), pause.is_over(now_s=106))
    (False, True)
    >>> pause.end()
    >>> pause.begin(now_s=200)
    1
    """

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s
        self._until_s: float | None = None

    def begin(self, now_s: float) -> float:
        """Begin the next pause; returns its length in seconds."""
        pause_s, self._next_s = self._next_s, min(self._max_s, 2 * self._next_s)
        self._until_s = now_s + pause_s
        return pause_s

    def is_over(self, now_s: float) -> bool:
        """Whether no pause is running."""
        return self._until_s is None or now_s >= self._until_s

    @property
    def is_first(self) -> bool:
        """Whether at most one pause was begun since the last `end`."""
        return self._next_s <= min(self._max_s, 2 * self._first_s)

    def end(self) -> None:
        """Record a success: the next failure begins with the first pause."""
        self._next_s, self._until_s = self._first_s, None
