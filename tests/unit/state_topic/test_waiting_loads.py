"""Loads that are read and wait for the watermark: who is served, what ends them, what loads meanwhile."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks
from headwater.logtier.state_topic.loading import RETRY_BACKOFF_S, StateLoader
from headwater.logtier.state_topic.writes import PartitionState, Wait
from tests.topic_images import with_leader_epoch
from tests.unit.state_topic.surroundings import settle
from tests.unit.state_topic.test_log import KeyLog, Keys
from tests.virtual_time import run_virtually

PARTITIONS = 3


class LoadingLog(KeyLog):
    """Keys in three partitions, which a loader loads. The partitions of `gates` are not committed to their end."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata.add("__state", PARTITIONS)
        for partition in range(PARTITIONS):
            batch = build_batch([Record(b"%d" % partition, b"", 0)])
            self.replicas.log(TopicPartition("__state", partition)).append(batch)
        self.gates: dict[int, asyncio.Event] = {}
        self.replicas.commitment = self._commitment  # type: ignore[method-assign]
        self.loaded: dict[int, list[bytes | None]] = {}
        self.times_all_loaded = 0
        self.tasks = SpawnedTasks("loading")
        self.loader = StateLoader(self, self._load, self._all_loaded, self.tasks.spawn)

    def _commitment(self, topic_partition: TopicPartition, last_offset: int, flush: Any = None, /) -> Wait | None:
        assert last_offset == self.replicas.log(topic_partition).log_end_offset - 1
        gate = self.gates.get(topic_partition.partition)
        return None if gate is None else functools.partial(self.replicas._committed, gate)

    async def _load(self, partition: int) -> Wait | None:
        replay = Keys()
        return await self._read(partition, replay, lambda: self.loaded.update({partition: replay.seen}))

    def _all_loaded(self) -> None:
        self.times_all_loaded += 1

    def active(self) -> list[int]:
        return [each for each in range(PARTITIONS) if self.is_active(each)]


def while_loading(scenario: Callable[[LoadingLog, asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Runs a scenario with partition 1 read and not committed to its end."""

    async def main() -> None:
        log = LoadingLog()
        gate = log.gates[1] = asyncio.Event()
        log.loader.begin()
        await settle()
        await scenario(log, gate)
        log.loader.stop()
        await log.tasks.cancel()

    run_virtually(main())


def test_a_partition_serves_only_when_the_watermark_has_passed_the_end_of_its_load() -> None:
    async def scenario(log: LoadingLog, gate: asyncio.Event) -> None:
        assert (log.active(), log.is_loading(1)) == ([0, 2], True)
        assert log.loaded == {0: [b"0"], 2: [b"2"]}
        gate.set()
        await settle()
        assert (log.active(), log.is_loading(1)) == ([0, 1, 2], False)
        assert log.loaded[1] == [b"1"]

    while_loading(scenario)


def test_requests_meanwhile_are_told_that_the_load_is_in_progress() -> None:
    async def scenario(log: LoadingLog, gate: asyncio.Event) -> None:
        name = next(each for each in map(str, range(99)) if log.partition_of(each) == 1)
        with pytest.raises(KafkaError) as caught:
            log.active_partition_of(name)
        assert caught.value.code is ErrorCode.coordinator_load_in_progress
        gate.set()
        await settle()
        assert log.active_partition_of(name) == 1

    while_loading(scenario)


def test_who_waits_for_the_end_of_a_load_goes_on_with_it_or_in_time() -> None:
    async def scenario(log: LoadingLog, gate: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        name = next(each for each in map(str, range(99)) if log.partition_of(each) == 1)
        begun_s = loop.time()
        await log.load_ended(name, 5.0)
        assert loop.time() - begun_s == 5.0
        for ended in (gate.set, lambda: log.fail(1), lambda: log.resign([1])):
            waiting = asyncio.ensure_future(log.load_ended(name, 5.0))
            await settle()
            assert not waiting.done()
            ended()
            await settle()
            assert waiting.done()
            # Then there is nothing to wait for.
            begun_s = loop.time()
            await log.load_ended(name, 5.0)
            assert loop.time() == begun_s
            if 1 in log._partitions:
                log._partitions[1].enter(PartitionState.READING)

    while_loading(scenario)


def test_other_partitions_load_while_one_waits_however_long() -> None:
    async def scenario(log: LoadingLog, gate: asyncio.Event) -> None:
        assert (log.loader.is_busy, log.times_all_loaded) == (False, 1)
        log.resign([0])
        log.loader.begin()
        await settle()
        assert (log.active(), log.times_all_loaded) == ([0, 2], 2)
        await asyncio.sleep(1_000)
        assert log.active() == [0, 2]
        gate.set()
        await settle()
        assert (log.active(), log.times_all_loaded) == ([0, 1, 2], 3)

    while_loading(scenario)


def test_a_resignation_while_a_load_waits_ends_it() -> None:
    async def scenario(log: LoadingLog, gate: asyncio.Event) -> None:
        log.metadata.image = with_leader_epoch(log.metadata.image, 3)
        log.resign([1])
        assert log.new_partitions() == [1]
        gate.set()
        await settle()
        assert (1 in log.loaded, log.is_active(1), log.is_to_be_loaded(1)) == (False, False, True)

    while_loading(scenario)


def test_a_leadership_that_ends_while_a_load_waits_is_no_failure_of_the_next_one() -> None:
    """The wait ends with an error, as the replicas see the new epoch, and the coordinator has loaded anew."""

    async def scenario(log: LoadingLog, gate: asyncio.Event) -> None:
        log.replicas.error_at_commitment = KafkaError(ErrorCode.not_leader_or_follower, "moved")
        log.metadata.image = with_leader_epoch(log.metadata.image, 3)
        log.resign([1])
        del log.gates[1]
        log.loader.begin()
        await settle()
        assert (log.loaded[1], log.is_active(1)) == ([b"1"], True)
        gate.set()
        await settle()
        assert (log.is_active(1), log.has_failed(1)) == (True, False)

    while_loading(scenario)


def test_a_load_whose_wait_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(log: LoadingLog, gate: asyncio.Event) -> None:
        log.replicas.error_at_commitment = KafkaError(ErrorCode.kafka_storage_error, "the disk failed")
        gate.set()
        await settle()
        assert (log.has_failed(1), log.loaded.get(1)) == (True, None)
        assert "__state-1 cannot be loaded, its keys are not available: " in caplog.text
        del log.gates[1]
        await asyncio.sleep(2 * RETRY_BACKOFF_S)
        assert (log.is_active(1), log.loaded[1]) == (True, [b"1"])

    while_loading(scenario)


def test_a_stop_while_a_load_waits_ends_it() -> None:
    async def scenario(log: LoadingLog, gate: asyncio.Event) -> None:
        log.loader.stop()
        await log.tasks.cancel()
        gate.set()
        await settle()
        assert (log.active(), 1 in log.loaded) == ([0, 2], False)

    while_loading(scenario)


class SlowLog(LoadingLog):
    """The first read of partition 0 takes until `first`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = asyncio.Event()
        self.reads: list[int] = []

    async def _load(self, partition: int) -> Wait | None:
        self.reads.append(partition)
        if self.reads == [0]:
            await self.first.wait()
        return await super()._load(partition)


def test_a_partition_that_gets_another_epoch_before_its_turn_is_read_and_adopted_once() -> None:
    """Adopted twice, it would forget what was acknowledged in between."""

    async def main() -> None:
        log = SlowLog()
        gate = log.gates[2] = asyncio.Event()
        log.loader.begin()
        await settle()
        log.metadata.move("__state", 2, leader=1, leader_epoch=3)
        log.resign(log.lost_partitions())
        log.loader.begin()
        log.first.set()
        await settle()
        del log.gates[2]
        gate.set()
        await settle()
        name = next(each for each in map(str, range(99)) if log.partition_of(each) == 2)
        batch = build_batch([Record(b"acknowledged", b"", 0)])
        await log._write(name, batch, applied=lambda _: log.loaded[2].append(b"acknowledged"))
        await settle()
        assert log.reads.count(2) == 1
        assert log.loaded[2] == [b"2", b"acknowledged"]
        log.loader.stop()
        await log.tasks.cancel()

    run_virtually(main())
