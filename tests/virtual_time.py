"""Runs a test in the virtual time of the simulation's event loop."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.simulation.virtual_loop import VirtualLoop

_T = TypeVar("_T")


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
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(random.Random(1))) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: lost.append(context))
        result = runner.run(main)
        # Futures that nobody awaited are reported when they are freed.
        if not is_one_of_many:
            gc.collect()
    assert lost == []
    return result
