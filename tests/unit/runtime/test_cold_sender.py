"""When the process that sends old data is asked, and how fast it goes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
from pathlib import Path

import pytest

from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.cold_sender import (
    PART_BYTES,
    PART_MS_MAX,
    PARTS_MAX,
    PRODUCING_MS,
    REST_MS,
    RESTART_MS,
    ColdReadPace,
    ColdSender,
)
from headwater.logtier.runtime.cold_sender_worker import Pace
from tests.manual_clock import ManualClock
from tests.stopped_process import stop

PATIENCE_S = 120  # on a busy machine the process gets little time


async def until_ready(sender: ColdSender) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not sender.is_ready():  # noqa: ASYNC110 (another process decides)
            await asyncio.sleep(0.002)


@pytest.mark.parametrize(("bytes_per_s", "due_ms"), [(0, PART_MS_MAX), (PART_BYTES, PART_MS_MAX + 1000)])
def test_a_process_that_gets_too_little_time_is_left_alone_for_a_while(
    tmp_path: Path, bytes_per_s: int, due_ms: int
) -> None:
    clock = ManualClock(1_000)

    async def scenario() -> None:
        sender = ColdSender(clock, lambda: bytes_per_s)
        ours, theirs = socket.socketpair()
        try:
            await until_ready(sender)
            assert sender.process_id is not None
            stop(sender.process_id)
            told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            with (tmp_path / "file").open("wb+") as file:
                file.truncate(10)
                assert sender.send(ours.fileno(), file.fileno(), 0, 10, lambda sent, _: told.set_result(sent))
            clock.ms += due_ms
            assert sender.is_ready()
            clock.ms += 1
            assert not sender.is_ready(), "the part it has is overdue"
            os.kill(sender.process_id, signal.SIGCONT)
            assert await asyncio.wait_for(told, PATIENCE_S) == 10
            assert not sender.is_ready()
            clock.ms += REST_MS - 1
            assert not sender.is_ready()
            clock.ms += 1
            assert sender.is_ready()
        finally:
            sender.close()
            ours.close()
            theirs.close()

    asyncio.run(scenario())


def test_it_takes_what_it_is_left_with_until_its_socket_is_full(tmp_path: Path) -> None:
    clock = ManualClock(1_000)

    async def scenario() -> None:
        sender = ColdSender(clock)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        told: list[int] = []
        try:
            await until_ready(sender)
            assert sender.process_id is not None
            stop(sender.process_id)
            with (tmp_path / "file").open("wb+") as file:
                file.truncate(10)
                taken = 0
                while sender.send(ours.fileno(), file.fileno(), 0, 1, lambda sent, _: told.append(sent)):
                    taken += 1
                    assert sender.is_ready() == (taken < PARTS_MAX)
                    assert taken < 100_000
            assert taken > PARTS_MAX
            os.kill(sender.process_id, signal.SIGCONT)
            async with asyncio.timeout(PATIENCE_S):
                while len(told) < taken:  # noqa: ASYNC110 (as above)
                    await asyncio.sleep(0.002)
            assert sum(told) == len(theirs.recv(taken + 1))
            assert sender.is_ready()
        finally:
            sender.close()
            ours.close()
            theirs.close()

    asyncio.run(scenario())


def test_it_is_started_again_some_time_after_its_end() -> None:
    clock = ManualClock(1_000)

    async def scenario() -> None:
        sender = ColdSender(clock)
        try:
            await until_ready(sender)
            first = sender.process_id
            assert first is not None
            os.kill(first, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                while sender.process_id is not None:  # noqa: ASYNC110 (as above)
                    await asyncio.sleep(0.002)
            clock.ms += RESTART_MS - 1
            assert not sender.is_ready()
            assert sender.process_id is None
            clock.ms += 1
            await until_ready(sender)
            assert sender.process_id not in (None, first)
        finally:
            sender.close()

    asyncio.run(scenario())


def test_it_gets_no_time_that_somebody_else_wants() -> None:
    async def scenario() -> None:
        sender = ColdSender(SystemClock())
        try:
            await until_ready(sender)
            assert sender.process_id is not None
            with contextlib.suppress(PermissionError):
                assert os.sched_getscheduler(sender.process_id) == os.SCHED_IDLE
        finally:
            sender.close()

    asyncio.run(scenario())


def test_reading_is_limited_while_producers_write_and_a_second_longer() -> None:
    clock = ManualClock(1_000)
    produced = 7
    pace = ColdReadPace(clock, lambda: 300, lambda: produced)
    assert pace.bytes_per_s() == 0
    produced += 1
    assert pace.bytes_per_s() == 300
    clock.ms += PRODUCING_MS - 1
    assert pace.bytes_per_s() == 300
    produced += 1
    assert pace.bytes_per_s() == 300
    clock.ms += PRODUCING_MS - 1
    assert pace.bytes_per_s() == 300
    clock.ms += 1
    assert pace.bytes_per_s() == 0


class Time:
    def __init__(self) -> None:
        self.s = 10.0

    def now_s(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.s += seconds + 0.0001  # nobody wakes up in time


def test_nobody_sends_faster_than_the_pace() -> None:
    time = Time()
    pace = Pace(time.now_s, time.sleep)
    turns = []
    for _ in range(1000):
        pace.wait(1_000, 1_000_000)
        turns.append(time.s)
    between = [after - before for before, after in itertools.pairwise(turns)]
    assert min(between) >= 0.001 - 1e-9
    assert max(between) < 0.0013, "and not much slower: nobody wakes up in time"


def test_time_when_nothing_was_sent_is_not_made_up_for() -> None:
    time = Time()
    pace = Pace(time.now_s, time.sleep)
    pace.wait(1_000, 1_000_000)
    time.s += 60
    begun_s = time.s
    for _ in range(1000):
        pace.wait(1_000, 1_000_000)
    assert time.s - begun_s >= 0.999
