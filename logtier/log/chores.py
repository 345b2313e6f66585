"""Periodic tasks, each with its own interval."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Do = TypeVar("Do")


def always() -> int:
    """Interval 0: the task is due at every call of `Chores.due`."""
    return 0


class Chore(Generic[Do]):
    """A task with its interval and the time of its last run."""

    __slots__ = ("do", "done_ms", "interval_ms")

    def __init__(self, do: Do, interval_ms: Callable[[], int] = always) -> None:
        """Create a task; `interval_ms` is called at each check, so that the interval may change."""
        self.do = do
        self.interval_ms = interval_ms
        self.done_ms = 0


class Chores(Generic[Do]):
    """Tasks in the order of their execution; the caller polls `due` often enough."""

    def __init__(self, *chores: Chore[Do]) -> None:
        self._chores = chores

    def begin(self, now_ms: int) -> None:
        """Start all intervals at `now_ms`."""
        for chore in self._chores:
            chore.done_ms = now_ms

    def due(self, now_ms: int) -> Iterator[Do]:
        """Yield the tasks that are due.

        The next interval of a task starts when the task is yielded: if a task fails, the later tasks are due at the
        next call. After the clock steps back, every task is due.

        >>> chores = Chores(Chore("sweep", lambda: 100), Chore("look"))
        >>> chores.begin(1_000)
        >>> [list(chores.due(now_ms)) for now_ms in (1_099, 1_100, 1_199, 300, 399, 400)]
        [['look'], ['sweep', 'look'], ['look'], ['sweep', 'look'], ['look'], ['sweep', 'look']]
        """
        for chore in self._chores:
            if not 0 <= now_ms - chore.done_ms < chore.interval_ms():
                chore.done_ms = now_ms
                yield chore.do
