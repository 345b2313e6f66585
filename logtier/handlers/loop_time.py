"""How long a request kept the event loop busy, which is what quotas of request time count."""

import types
from collections.abc import Coroutine, Generator
from time import perf_counter_ns
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopTime:
    """A stopwatch that runs while the loop works for one request, and not while the request waits."""

    __slots__ = ("_resumed_ns", "_worked_ns")

    def __init__(self) -> None:
        self._worked_ns = 0
        self._resumed_ns = perf_counter_ns()

    def resume(self) -> None:
        """The loop works for the request again."""
        self._resumed_ns = perf_counter_ns()

    def pause(self) -> None:
        """The request waits."""
        if self._resumed_ns:
            self._worked_ns += perf_counter_ns() - self._resumed_ns
            self._resumed_ns = 0

    def count(self, worked_ns: int) -> None:
        """Another thread worked for the request for so long."""
        self._worked_ns += worked_ns

    def take_ms(self) -> float:
        """The time since the last call of this; the watch goes on as it was."""
        is_running = self._resumed_ns != 0
        self.pause()
        worked_ms = self._worked_ns / 1_000_000
        self._worked_ns = 0
        if is_running:
            self.resume()
        return worked_ms


@types.coroutine
def measured(steps: Coroutine[Any, Any, Result], loop_time: LoopTime) -> Generator[Any, Any, Result]:
    """Await a coroutine, with the watch running in each of its steps and resting between them."""
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
        except BaseException as error:  # noqa: BLE001 (a cancellation too is the coroutine's to answer)
            thrown = error
