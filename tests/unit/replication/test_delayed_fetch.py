"""Fetches that wait: what completes them, what they are answered with, what they cost whoever appends meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.reading import LogSlice
from headwater.logtier.metadata.image import MetadataDelta
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.records.batch import CorruptRecordsError
from headwater.logtier.replication.partition import Partition
from headwater.logtier.runtime.disk import EMPTY_FILE
from tests.topic_images import with_leader_epoch
from tests.unit.replication.replicas_on_disk import LARGE, NOW_MS, ReplicasOnDisk, partition, size_of

Make = Callable[..., ReplicasOnDisk]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(partitions: int = 1, **config: int) -> ReplicasOnDisk:
        return ReplicasOnDisk(tmp_path, partitions, TopicConfig(**config))  # type: ignore[arg-type]

    return make


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


class Looks:
    """How many partitions were read: each read checks the leader; an append has its own, quicker check."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        check_leader = Partition.check_leader

        def counted(each: Partition[Any], current_leader_epoch: int = -1, **how: bool) -> None:
            self.count += 1
            check_leader(each, current_leader_epoch, **how)

        monkeypatch.setattr(Partition, "check_leader", counted)


def test_an_append_reads_no_log_for_a_fetch_that_goes_on_waiting(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = make(50)
        waiting = world.waiting([world.wanted(i) for i in range(50)], 10 << 20)
        looks = Looks(monkeypatch)
        for i in range(50):
            world.append(i)
            world.append(0)
        assert looks.count == 0
        waiting.cancel()

    run(scenario)


def test_an_append_in_a_transaction_reads_no_log_for_a_read_committed_fetch(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = make(20)
        for i in range(20):
            world.append_in_transaction(i)
        waiting = world.waiting([world.wanted(i, 0, committed=True) for i in range(20)], 1)
        looks = Looks(monkeypatch)
        for i in range(20):
            world.append(i)
            world.append(0)
        assert looks.count == 0
        assert not waiting.done()
        world.end_transaction(3, commit=False)
        [*_, found] = (await waiting)[:4]
        assert found.aborted_transactions
        assert found.last_stable_offset == world.end_offset(3)

    run(scenario)


@pytest.mark.parametrize("committed", [False, True])
def test_bytes_of_all_partitions_add_up_to_the_minimum(make: Make, committed: bool) -> None:
    async def scenario() -> None:
        world = make(3)
        world.append(1)
        size = world.append(1)
        waiting = world.waiting([world.wanted(i, 1 if i == 1 else 0, committed=committed) for i in range(3)], 4 * size)
        for i in (0, 2):
            world.append(i)
            assert not waiting.done()
        world.append(2)
        assert [each.size for each in await waiting] == [size, size, 2 * size]
        assert world.replicas.delayed_operations == 0

    run(scenario)


def test_what_a_partition_has_counts_up_to_its_limit(make: Make) -> None:
    async def scenario() -> None:
        world = make(2)
        size = world.append()
        waiting = world.waiting([world.wanted(0, 0, 2 * size), world.wanted(1)], 3 * size)
        for _ in range(5):
            world.append()
            assert not waiting.done()
        world.append(1)
        assert [each.size for each in await waiting] == [2 * size, size]

    run(scenario)


def test_a_limit_that_is_reached_counts_in_full_though_the_records_end_with_a_batch_before_it(make: Make) -> None:
    async def scenario() -> None:
        world = make(index_interval_bytes=1)
        size = 0
        for _ in range(10):
            size = world.append()
        limit = 3 * size + size // 2
        found = world.fetch([world.wanted(0, 0, limit)], limit, bytes_max=limit)
        assert isinstance(found, list)
        assert size_of(found) == 3 * size

    run(scenario)


def test_a_partition_to_which_the_others_leave_nothing_counts_what_it_has(make: Make) -> None:
    async def scenario() -> None:
        world = make(2)
        size = world.append(1)
        for _ in range(3):
            world.append()
        limit = 3 * size + size // 2
        found = world.fetch([world.wanted(0, 0), world.wanted(1, 0)], limit, bytes_max=limit)
        assert isinstance(found, list)
        assert [each.size for each in found] == [3 * size, 0]

    run(scenario)


def test_a_batch_above_the_limit_completes_a_fetch_as_it_would_answer_one(make: Make) -> None:
    async def scenario() -> None:
        world = make()
        for bytes_max in (0, 1, 500):
            waiting = world.waiting([world.wanted(bytes_max=bytes_max)], 2_000, bytes_max=2_000)
            assert size_of(await _after(waiting, lambda: world.append(value_bytes=3_000))) > 3_000

    run(scenario)


async def _after(waiting: asyncio.Future[Any], act: Callable[[], object]) -> Any:
    assert not waiting.done()
    act()
    assert waiting.done()
    return await waiting


def test_records_that_end_with_their_segment_are_not_kept_waiting(make: Make) -> None:
    async def scenario() -> None:
        world = make(segment_bytes=1_000)
        size = world.append()
        waiting = world.waiting([world.wanted(0, 0)], LARGE)
        log = world.replicas.log(partition(0))
        while log.segment_count == 1:
            assert not waiting.done()
            world.append()
        [found] = await waiting
        assert found.size == log.segments[0].size
        again = world.fetch([world.wanted(0, 1, 5_000)], LARGE)
        assert isinstance(again, list)
        assert size_of(again) == log.segments[0].size - size
        assert not isinstance(world.fetch([world.wanted(0, log.segments[1].base_offset)], LARGE), list)

    run(scenario)


def test_a_fetch_at_the_end_of_a_segment_waits_for_the_next_ones_records(make: Make) -> None:
    async def scenario() -> None:
        world = make(segment_bytes=1_000)
        size = world.append()
        while world.replicas.log(partition(0)).segments[0].size + size <= 1_000:
            world.append()
        waiting = world.waiting([world.wanted()], 2 * size)
        world.append()
        assert world.replicas.log(partition(0)).segment_count == 2
        assert not waiting.done()
        world.append()
        assert size_of(await waiting) == 2 * size

    run(scenario)


def test_an_offset_behind_which_compaction_left_nothing_waits_for_the_next_record(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = make()
        for _ in range(5):
            world.append()
        world.replicas.log(partition(0)).roll(NOW_MS)
        with monkeypatch.context() as compacted:
            compacted.setattr("headwater.logtier.log.log.Log.read", lambda *_, **__: LogSlice(EMPTY_FILE, 0, 0, 3))
            waiting = world.waiting([world.wanted(0, 3)], 1)
        world.append()
        assert size_of(await waiting) > 0

    run(scenario)


def test_a_last_stable_offset_that_moves_to_another_open_transaction_counts_what_it_uncovers(make: Make) -> None:
    async def scenario() -> None:
        world = make()
        size = world.append_in_transaction(producer_id=7)
        world.append()
        world.append_in_transaction(producer_id=8)
        world.append_in_transaction(producer_id=7)
        waiting = world.waiting([world.wanted(0, 0, committed=True)], 3 * size)
        marker = world.end_transaction(producer_id=7)
        # Two batches lie before the other transaction.
        assert not waiting.done()
        world.append()
        assert not waiting.done()
        end = world.end_offset()
        world.end_transaction(producer_id=8, commit=False)
        [found] = await waiting
        assert found.size > 5 * size + marker
        assert found.last_stable_offset == end + 1

    run(scenario)


def test_a_partition_that_cannot_be_read_when_its_last_stable_offset_moves_answers_the_fetch(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = make()
        world.append_in_transaction(producer_id=7)
        world.append_in_transaction(producer_id=8)
        waiting = world.waiting([world.wanted(0, 0, committed=True)], LARGE)

        def damaged(*_: object, **__: object) -> None:
            raise CorruptRecordsError("damaged")

        monkeypatch.setattr("headwater.logtier.log.log.Log.read", damaged)
        world.end_transaction(producer_id=7)
        [found] = await waiting
        assert found.error_code is ErrorCode.corrupt_message

    run(scenario)


def test_a_transaction_that_begins_and_ends_while_a_fetch_waits_counts_when_it_ends(make: Make) -> None:
    async def scenario() -> None:
        world = make()
        waiting = world.waiting([world.wanted(committed=True)], 1)
        size = world.append_in_transaction()
        size += world.append()
        assert not waiting.done()
        size += world.end_transaction()
        assert size_of(await waiting) == size

    run(scenario)


@pytest.mark.parametrize("moved", [False, True])
def test_time_over_answers_with_what_is_there_by_then(make: Make, moved: bool) -> None:
    async def scenario() -> None:
        world = make(2)
        waiting = world.waiting([world.wanted(0), world.wanted(1)], LARGE, wait_ms=1)
        if moved:
            world.append(1)
        first, second = await waiting
        assert (first.high_watermark, first.size) == (0, 0)
        assert (second.high_watermark, second.size > 0) == ((1, True) if moved else (0, False))
        assert world.replicas.delayed_operations == 0

    run(scenario)


def test_a_high_watermark_that_moves_behind_an_open_transaction_is_told_when_the_time_is_over(make: Make) -> None:
    async def scenario() -> None:
        world = make()
        world.append_in_transaction()
        waiting = world.waiting([world.wanted(0, 0, committed=True)], 1, wait_ms=1)
        world.append()
        [found] = await waiting
        assert (found.high_watermark, found.last_stable_offset, found.size) == (2, 0, 0)

    run(scenario)


@pytest.mark.parametrize("bytes_min", [1, LARGE])
def test_a_fetch_is_answered_when_its_partitions_go(make: Make, bytes_min: int) -> None:
    async def scenario() -> None:
        world = make(2)
        waiting = world.waiting([world.wanted(0), world.wanted(1)], bytes_min)
        world.delete()
        assert {each.error_code for each in await waiting} == {ErrorCode.unknown_topic_or_partition}
        assert world.replicas.delayed_operations == 0

    run(scenario)


@pytest.mark.parametrize("bytes_min", [1, LARGE])
def test_a_fetch_is_answered_when_the_leader_epoch_changes(make: Make, bytes_min: int) -> None:
    async def scenario() -> None:
        world = make(2)
        epoch = world.replicas.partition(partition(0)).leader_epoch
        waiting = world.waiting([world.wanted(0)._replace(leader_epoch=epoch), world.wanted(1)], bytes_min)
        world.follow(with_leader_epoch(world.image, epoch + 1))
        first, second = await waiting
        assert (first.error_code, second.error_code) == (ErrorCode.fenced_leader_epoch, ErrorCode.none)

    run(scenario)


@pytest.mark.parametrize("bytes_min", [1, LARGE])
def test_a_fetch_is_answered_when_the_leader_goes(make: Make, bytes_min: int) -> None:
    async def scenario() -> None:
        world = make(2)
        waiting = world.waiting([world.wanted(0), world.wanted(1)], bytes_min)
        [topic] = world.image.topics.values()
        gone = replace(topic.partitions[0], leader=-1, leader_epoch=topic.partitions[0].leader_epoch + 1)
        changed = replace(topic, partitions=(gone, topic.partitions[1]))
        world.replicas.apply(MetadataDelta(world.image, world.image, (), (), (changed,)))
        first, second = await waiting
        assert (first.error_code, second.error_code) == (ErrorCode.not_leader_or_follower, ErrorCode.none)

    run(scenario)


def test_records_that_are_deleted_before_a_transaction_answer_a_read_committed_fetch_of_them(make: Make) -> None:
    async def scenario() -> None:
        world = make()
        world.append_in_transaction()
        world.append()
        waiting = world.waiting([world.wanted(0, 0, committed=True)], 1)
        world.replicas.delete_records(partition(0), 1)
        assert (await waiting)[0].error_code is ErrorCode.offset_out_of_range

    run(scenario)


def test_a_last_stable_offset_that_comes_no_further_than_the_fetch_answers_nothing(make: Make) -> None:
    async def scenario() -> None:
        world = make()
        world.append_in_transaction()
        waiting = world.waiting([world.wanted(0, 1, committed=True)], 1)
        world.replicas.delete_records(partition(0), 1)
        assert not waiting.done()
        world.end_transaction()
        assert (await waiting)[0].size > 0

    run(scenario)


def test_records_that_are_deleted_answer_a_fetch_of_them_alone(make: Make) -> None:
    async def scenario() -> None:
        world = make()
        for _ in range(3):
            world.append()
        waiting = world.waiting([world.wanted(0, 1)], LARGE)
        later = world.waiting([world.wanted(0, 3)], LARGE)
        world.replicas.delete_records(partition(0), 1)
        assert not waiting.done()
        world.replicas.delete_records(partition(0), 2)
        [found] = await waiting
        assert (found.error_code, found.log_start_offset) == (ErrorCode.offset_out_of_range, 2)
        assert not later.done()

    run(scenario)


def test_a_truncated_log_answers_a_fetch_of_what_is_gone(make: Make) -> None:
    async def scenario() -> None:
        world = make()
        for _ in range(3):
            world.append()
        waiting = world.waiting([world.wanted()], LARGE)
        world.replicas.log(partition(0)).truncate_to(1)
        replica = world.replicas.partition(partition(0))
        replica.high_watermark = 1
        world.replicas.delete_records(partition(0), 0)
        assert (await waiting)[0].error_code is ErrorCode.offset_out_of_range

    run(scenario)


def test_a_client_that_goes_away_leaves_nothing_behind(make: Make) -> None:
    async def scenario() -> None:
        world = make(3)
        gone = world.waiting([world.wanted(i) for i in range(3)], 1)
        stays = world.waiting([world.wanted(1)], 1)
        gone.cancel()
        # Before the loop tells anybody that it was cancelled.
        world.append(0)
        await asyncio.sleep(0)
        assert world.replicas.delayed_operations == 1
        world.append(1)
        assert size_of(await stays) > 0
        assert world.replicas.delayed_operations == 0

    run(scenario)


def test_a_partition_that_is_named_twice_counts_twice(make: Make) -> None:
    async def scenario() -> None:
        world = make()
        size = world.append()
        waiting = world.waiting([world.wanted(0, 0), world.wanted(0, 1)], 3 * size)
        world.append()
        assert [each.size for each in await waiting] == [2 * size, size]

    run(scenario)


def test_an_unexpected_failure_of_the_reading_is_the_fetchs_and_not_the_producers(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = make()
        waiting = world.waiting([world.wanted()], 1)

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr("headwater.logtier.log.log.Log.read", fail)
        world.append()
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await waiting

    run(scenario)
