"""Work that nobody waits for."""

from __future__ import annotations

import asyncio

import pytest

from headwater.logtier.runtime.spawned_tasks import SpawnedTasks


def test_a_fault_of_a_task_is_logged_with_whose_it_was(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def scenario() -> None:
        await asyncio.wait([SpawnedTasks("mill").spawn(fail())])

    asyncio.run(scenario())
    assert "a task of the mill failed" in caplog.text
    assert "broken" in caplog.text


def test_cancelled_tasks_end_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        tasks = SpawnedTasks("mill")
        waiting = tasks.spawn(asyncio.sleep(1000))
        await asyncio.sleep(0)
        await tasks.cancel()
        assert waiting.cancelled()

    asyncio.run(scenario())
    assert not caplog.records
