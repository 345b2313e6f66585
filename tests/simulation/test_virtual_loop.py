"""The loop in virtual time, and the processes whose callbacks it holds or drops."""

from __future__ import annotations

import asyncio
import random
from contextvars import Context

from tests.simulation.virtual_loop import PROCESS, START_S, Process, VirtualLoop


def test_an_hour_passes_at_once_and_timers_keep_their_order() -> None:
    async def main() -> list[int]:
        ended: list[int] = []

        async def wait(seconds: int) -> None:
            await asyncio.sleep(seconds)
            ended.append(seconds)

        await asyncio.gather(*(wait(seconds) for seconds in (3_600, 10, 60)))
        return ended

    loop = VirtualLoop(random.Random(1))
    assert loop.run_until_complete(main()) == [10, 60, 3_600]
    assert loop.time() >= START_S + 3_600
    loop.close()


def ticks_of_a_process(what: str) -> list[float]:
    """When a task that ticks every second does so, if something happens to its process from 2.5 s to 5.5 s."""
    loop = VirtualLoop(random.Random(1))
    process = Process("broker")
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(round(loop.time() - START_S, 1))

    async def main() -> None:
        context = Context()
        context.run(PROCESS.set, process)
        task = loop.create_task(tick(), context=context)
        await asyncio.sleep(2.5)
        if what == "freeze":
            process.is_frozen = True
        elif what == "kill":
            process.kill()
        await asyncio.sleep(3)
        loop.thaw(process)
        await asyncio.sleep(2)
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    loop.run_until_complete(main())
    loop.close()
    return ticks


def test_a_frozen_process_goes_on_where_it_was() -> None:
    assert ticks_of_a_process("nothing") == [1, 2, 3, 4, 5, 6, 7]
    assert ticks_of_a_process("freeze")[:4] == [1, 2, 5.5, 6.5]


def test_a_killed_process_takes_no_further_step() -> None:
    assert ticks_of_a_process("kill") == [1, 2]


def test_work_for_threads_is_done_by_the_loop() -> None:
    loop = VirtualLoop(random.Random(1))

    async def main() -> int:
        return await asyncio.to_thread(lambda: 3)

    assert loop.run_until_complete(main()) == 3
    loop.close()
