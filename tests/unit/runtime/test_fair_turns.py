"""Turns that many owners share."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from headwater.logtier.runtime.fair_turns import FairTurns


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Work:
    """Takes turns, and ends them when it is told to."""

    def __init__(self, turns_max: int, owner_max: int | None = None) -> None:
        self.turns = FairTurns(turns_max, owner_max)
        self.begun: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def begin(self, *names: str) -> None:
        """Wait for turns; a name begins with its owner."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.ensure_future(self._run(name, self._ends[name]))
        await settle()

    async def _run(self, name: str, end: asyncio.Event) -> None:
        async with self.turns.of(name[0]):
            self.begun.append(name)
            await end.wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
        await settle()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await settle()

    async def finish(self) -> None:
        await self.end(*self._ends)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        assert not self.turns._taken
        assert not self.turns._waiting


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_one_owner_has_half_of_the_turns_and_others_find_the_rest() -> None:
    async def scenario() -> None:
        work = Work(4)
        await work.begin("a1", "a2", "a3", "a4", "a5", "b1")
        assert work.begun == ["a1", "a2", "b1"]
        await work.begin("c1", "d1")
        assert work.begun == ["a1", "a2", "b1", "c1"]
        await work.end("a1")
        assert work.begun[4:] == ["a3"]
        await work.end("a2")
        assert work.begun[5:] == ["d1"]
        await work.finish()

    run(scenario())


def test_an_owner_that_may_have_all_turns_has_them_until_another_comes() -> None:
    async def scenario() -> None:
        work = Work(2, 2)
        await work.begin("a1", "a2", "a3", "a4", "b1")
        assert work.begun == ["a1", "a2"]
        await work.end("a1", "a2")
        assert work.begun == ["a1", "a2", "a3", "b1"]
        await work.finish()

    run(scenario())


def test_owners_that_wait_take_turns_however_many_wait_for_one() -> None:
    async def scenario() -> None:
        work = Work(1)
        await work.begin("a1", "a2", "a3", "a4", "b1", "b2", "c1")
        for name in ("a1", "a2", "b1", "c1", "a3", "b2", "a4"):
            await work.end(name)
        assert work.begun == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
        await work.finish()

    run(scenario())


def test_who_is_gone_while_waiting_takes_no_turn() -> None:
    async def scenario() -> None:
        work = Work(1)
        await work.begin("a1", "a2", "a3", "b1")
        await work.cancel("a2", "a3")
        await work.end("a1")
        assert work.begun == ["a1", "b1"]
        await work.finish()

    run(scenario())


def test_a_turn_is_given_on_by_who_is_gone_when_it_comes() -> None:
    async def scenario() -> None:
        work = Work(1)
        await work.begin("a1", "b1", "c1")
        work._ends["a1"].set()
        await asyncio.sleep(0)  # the turn is b1's now, which has not run yet
        await work.cancel("b1")
        assert work.begun == ["a1", "c1"]
        await work.finish()

    run(scenario())


def test_who_is_gone_and_not_yet_taken_out_is_passed_over() -> None:
    async def scenario() -> None:
        work = Work(1)
        await work.begin("a1", "b1", "b2")
        work._ends["a1"].set()
        work._tasks["b1"].cancel()
        await settle()
        assert work.begun == ["a1", "b2"]
        await work.finish()

    run(scenario())


@pytest.mark.parametrize("is_ended_first", [True, False])
@pytest.mark.parametrize("steps", [(0,), (0, 0), (0, 1), (1, 1), (1, 0, 2), (2, 2)])
def test_a_waiting_task_cancelled_twice_neither_takes_nor_loses_a_turn(
    steps: tuple[int, ...], is_ended_first: bool
) -> None:
    """Each cancellation comes so many steps of the event loop after the one before; the turn comes free beside them."""

    async def scenario() -> None:
        work = Work(1)
        await work.begin("a1", "b1", "c1")
        if is_ended_first:
            work._ends["a1"].set()
        for count in steps:
            for _ in range(count):
                await asyncio.sleep(0)
            work._tasks["b1"].cancel()
        work._ends["a1"].set()
        await settle()
        await work.end("b1")  # which may have begun before it was cancelled
        assert work.begun[-1] == "c1"
        assert work.turns._taken == {"c": 1}
        await work.finish()
        assert work.turns._free == 1

    run(scenario())


def test_random_cancellations_leave_all_turns_free() -> None:
    async def scenario(seed: int) -> None:
        prng = random.Random(seed)
        work = Work(3, 2)
        names = [f"{owner}{number}" for owner in "abcd" for number in range(4)]
        for name in names:
            work._ends[name] = asyncio.Event()
            work._tasks[name] = asyncio.ensure_future(work._run(name, work._ends[name]))
        for _ in range(60):
            name = prng.choice(names)
            match prng.randrange(3):
                case 0:
                    work._ends[name].set()
                case 1:
                    work._tasks[name].cancel()
                case _:
                    await asyncio.sleep(0)
            assert 0 <= work.turns._free <= 3
            assert work.turns._free + sum(work.turns._taken.values()) == 3
        await work.finish()
        assert work.turns._free == 3

    for seed in range(50):
        run(scenario(seed))


def test_an_urgent_task_comes_before_its_owners_others() -> None:
    async def main() -> None:
        turns, begun = FairTurns(1), list[str]()

        async def take(name: str, *, is_urgent: bool = False) -> None:
            async with turns.of("a", is_urgent=is_urgent):
                begun.append(name)
                await settle()

        tasks = [asyncio.ensure_future(take(name)) for name in ("one", "two", "three")]
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(take("urgent", is_urgent=True)))
        await asyncio.gather(*tasks)
        assert begun == ["one", "urgent", "two", "three"]

    asyncio.run(main())
