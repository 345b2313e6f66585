"""An event loop whose time jumps to the next timer as soon as nothing else is left to do."""

from __future__ import annotations

import asyncio
import gc
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: what would be a wait moves the time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("every task waits, and no timer is set")
        self.now_s += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop for tests without sockets, processes and threads."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def stand_still(self, seconds: float) -> None:
        """Moves the time without running what was due meanwhile, as if the process had been stopped."""
        self._jumping.now_s += seconds


class LoopClock:
    """The time of the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        return round(self._loop.time() * 1000)

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1000)


def run_virtually(main: Coroutine[Any, Any, _T], *, is_one_of_many: bool = False) -> _T:
    """Runs a test to its end; hours pass in no time. Errors that nobody awaits fail it, unless it is one of many."""
    lost: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: lost.append(context))
        result = runner.run(main)
        # Futures that nobody awaited are reported when they are freed.
        if not is_one_of_many:
            gc.collect()
    assert lost == []
    return result
