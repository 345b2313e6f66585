"""What is done again and again, each at its own interval."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Do = TypeVar("Do")


def always() -> int:
    """The interval of what is due whenever somebody asks."""
    return 0


class Chore(Generic[Do]):
    """Something to do, and when it was last done."""

    __slots__ = ("do", "done_ms", "interval_ms")

    def __init__(self, do: Do, interval_ms: Callable[[], int] = always) -> None:
        """`interval_ms` is asked each time, for it may change."""
        self.do = do
        self.interval_ms = interval_ms
        self.done_ms = 0


class Chores(Generic[Do]):
    """Chores in the order in which they are done, for who asks often enough what is due."""

    def __init__(self, *chores: Chore[Do]) -> None:
        self._chores = chores

    def begin(self, now_ms: int) -> None:
        """Let all intervals begin now."""
        for chore in self._chores:
            chore.done_ms = now_ms

    def due(self, now_ms: int) -> Iterator[Do]:
        """Yield what is due.

        The next interval of a chore begins when it is yielded: after a chore that fails, the later ones are due the
        next
        time. After a step back of the clock every chore is due.

        >>> chores = Chores(Chore("sweep", lambda: 100), Chore("look"))
        >>> chores.begin(1_000)
        >>> [list(chores.due(now_ms)) for now_ms in (1_099, 1_100, 1_199, 300, 399, 400)]
        [['look'], ['sweep', 'look'], ['look'], ['sweep', 'look'], ['look'], ['sweep', 'look']]
        """
        for chore in self._chores:
            if not 0 <= now_ms - chore.done_ms < chore.interval_ms():
                chore.done_ms = now_ms
                yield chore.do
