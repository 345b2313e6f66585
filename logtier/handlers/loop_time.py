"""Measures the event loop time of a request, for quotas of request time."""

import types
from collections.abc import Coroutine, Generator
from time import perf_counter_ns
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopTime:
    """A stopwatch that runs while the loop works for one request, and pauses while the request waits."""

    __slots__ = ("_resumed_ns", "_worked_ns")

    def __init__(self) -> None:
        self._worked_ns = 0
        self._resumed_ns = perf_counter_ns()

    def resume(self) -> None:
        """Continue: the loop works for the request again."""
        self._resumed_ns = perf_counter_ns()

    def pause(self) -> None:
        """Pause: the request waits."""
        if self._resumed_ns:
            self._worked_ns += perf_counter_ns() - self._resumed_ns
            self._resumed_ns = 0

    def count(self, worked_ns: int) -> None:
        """Add time that another thread worked for the request, in ns."""
        self._worked_ns += worked_ns

    def take_ms(self) -> float:
        """Return the time since the last call, in ms; the stopwatch keeps running or pausing."""
        is_running = self._resumed_ns != 0
        self.pause()
        worked_ms = self._worked_ns / 1_000_000
        self._worked_ns = 0
        if is_running:
            self.resume()
        return worked_ms


@types.coroutine
def measured(steps: Coroutine[Any, Any, Result], loop_time: LoopTime) -> Generator[Any, Any, Result]:
    """Await a coroutine with the stopwatch running during each of its steps and paused between them."""
    thrown: BaseException | None = None
    while True:
        loop_time.resume()
        try:
            awaited = steps.send(None) if thrown is None else steps.throw(thrown)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            loop_time.pause()
        thrown = None
        try:
            yield awaited
        except BaseException as error:  # noqa: BLE001 (the coroutine handles cancellations as well)
            thrown = error
