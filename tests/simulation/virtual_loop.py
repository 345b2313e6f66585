"""An event loop in virtual time: a timer is due as soon as nothing else is to be done."""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import selectors
import warnings
from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

Result = TypeVar("Result")

#: Virtual time at the start of a run, in seconds; a time of 0 would hide a forgotten start value.
START_S = 1_000.0
#: Duration of work on a thread, in seconds.
THREAD_S = (0.000_1, 0.005)


class Process:
    """A process of the simulation: the callbacks that were scheduled by it, and can be held or dropped.

    Invariant: after `kill`, no code of the process runs. A frozen process (SIGSTOP) runs its callbacks when it is
    thawed, in their order; timers that were due meanwhile are among them.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_frozen = False
        self.held: list[asyncio.Handle] = []

    def kill(self) -> None:
        """End the process, without a further step of any of its tasks."""
        self.is_dead = True
        self.held.clear()


#: The process that the present callback belongs to; None for clients and for the simulation itself.
PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


def _passes(handle: asyncio.Handle, context: Context) -> bool:
    """Whether a callback may run now; that of a frozen process is held."""
    process = context.get(PROCESS)
    if process is None or not (process.is_frozen or process.is_dead):
        return True
    if not process.is_dead:
        process.held.append(handle)
    return False


class _Handle(asyncio.Handle):
    __slots__ = ()
    _context: Context

    def _run(self) -> None:
        if _passes(self, self._context):
            super()._run()
            self._loop.count_step()  # type: ignore[attr-defined]


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ()
    _context: Context

    def _run(self) -> None:
        if _passes(self, self._context):
            super()._run()
            self._loop.count_step()  # type: ignore[attr-defined]


class _VirtualSelector(selectors.BaseSelector):
    """A selector without files: instead of waiting it moves the time."""

    def __init__(self) -> None:
        self.now_s = START_S

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, fileobj, 0, None)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "no task of the simulation can go on"
        if timeout > 0:
            self.now_s += timeout
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs tasks in virtual time, deterministically for a seed.

    Work for threads runs on the loop itself, at a random moment soon after. No file can be watched.

    Attributes:
        is_touched: Whether the present callback has changed something that is checked.
        checks: Run after each callback that has changed something.
        steps: Callbacks so far.
    """

    def __init__(self, chance: random.Random) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)
        self._chance = chance
        self.is_touched = False
        self.checks: list[Callable[[], None]] = []
        self.steps = 0

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._virtual.now_s

    def count_step(self) -> None:
        """Note that a callback has run; an error of the check ends the run."""
        self.steps += 1
        if self.is_touched:
            self.is_touched = False
            for check in self.checks:
                check()

    def _write_to_self(self) -> None:
        """Wake nobody: there is one thread."""

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, copy_context() if context is None else context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, copy_context() if context is None else context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        """Run work for a thread, soon."""
        future: asyncio.Future[Result] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except BaseException as error:  # noqa: BLE001 (belongs to the awaiting task)
                future.set_exception(error)

        self.call_later(self._chance.uniform(*THREAD_S), work)
        return future

    def stand_still(self, seconds: float) -> None:
        """Move the time without running what was due meanwhile, as if the machine had been stopped."""
        self._virtual.now_s += seconds

    def thaw(self, process: Process) -> None:
        """Continue a frozen process with the callbacks that were held."""
        process.is_frozen = False
        held, process.held = process.held, []
        self._ready.extend(held)  # type: ignore[attr-defined]


#: Steps of the `finally` blocks of one task that are cut short when it is dropped.
CLOSES_MAX = 100


def drop(loop: VirtualLoop) -> None:
    """Close a loop, and drop what is left of all processes without running it."""
    loop.set_exception_handler(lambda *_: None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro())
        loop.close()
        # A coroutine that awaits in a `finally` block outlives its closing: collected later, it would go on in the loop
        # of the next run.
        gc.collect()


class _Dropped(BaseException):
    """Ends a coroutine; unlike `close` it reaches the innermost one, and unlike a cancellation nobody catches it."""


def _close(coroutine: Any) -> None:
    """End a coroutine, whatever it awaits in its `finally` blocks, which fail for lack of a loop; nobody is told."""
    for _ in range(CLOSES_MAX):
        try:
            coroutine.throw(_Dropped())
        except BaseException:  # noqa: BLE001 (of a dropped process)
            return
    coroutine.close()
