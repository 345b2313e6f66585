"""Offsets that are committed in transactions: when they count, who may commit them, what outlives a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import RecordBatchHeader, end_transaction_marker

if TYPE_CHECKING:
    from tests.unit.group.conftest import World

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER, EPOCH = 77, 0
GROUP = "g"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    made = make_world()
    made.metadata.add("t")
    return made


async def started(world: World) -> None:
    await world.groups.start()
    await world.groups.find(GROUP)
    await asyncio.sleep(0)


async def commit(
    world: World, offset: int, *, producer_id: int = PRODUCER, partition: TopicPartition = P0, **member: Any
) -> None:
    named = {"member_id": "", "group_instance_id": None, "generation_id": -1, **member}
    await world.groups.transactional.commit(
        GROUP,
        producer_id=producer_id,
        producer_epoch=EPOCH,
        commits={partition: CommittedOffset(offset, commit_timestamp_ms=world.clock.ms)},
        verification=None,
        **named,
    )


async def plain_commit(world: World, offset: int) -> None:
    await world.groups.commit_offsets(
        GROUP,
        member_id="",
        group_instance_id=None,
        generation_id=-1,
        commits={P0: CommittedOffset(offset, commit_timestamp_ms=world.clock.ms)},
    )


async def end(world: World, *, committed: bool, producer_id: int = PRODUCER) -> None:
    key = await world.groups.offsets_partition(GROUP)
    marker = end_transaction_marker(
        committed=committed,
        producer_id=producer_id,
        producer_epoch=EPOCH,
        coordinator_epoch=0,
        timestamp_ms=world.clock.ms,
    )
    offset = world.replicas.log(key).append(marker)
    world.groups.transactional.marker_written(key, producer_id, offset, committed)


def offset_of(world: World, partition: TopicPartition = P0) -> int | None:
    found = world.groups.committed(GROUP).get(partition)
    return None if found is None else found.offset


def test_a_commit_in_a_transaction_counts_from_its_marker_on(world: World) -> None:
    async def scenario() -> None:
        await started(world)
        await plain_commit(world, 3)
        await commit(world, 5)
        assert (offset_of(world), world.groups.transactional.is_pending(GROUP, P0)) == (3, True)
        assert not world.groups.transactional.is_pending(GROUP, P1)
        await end(world, committed=True)
        assert (offset_of(world), world.groups.transactional.is_pending(GROUP, P0)) == (5, False)

    run(scenario())


def test_an_aborted_commit_leaves_nothing_behind(world: World) -> None:
    async def scenario() -> None:
        await started(world)
        await plain_commit(world, 3)
        await commit(world, 5)
        await end(world, committed=False)
        assert (offset_of(world), world.groups.transactional.is_pending(GROUP, P0)) == (3, False)

    run(scenario())


def test_the_commit_that_stands_later_in_the_log_wins(world: World) -> None:
    async def scenario() -> None:
        await started(world)
        await commit(world, 5)
        await plain_commit(world, 9)
        await end(world, committed=True)
        assert offset_of(world) == 9

    run(scenario())


def test_two_transactions_with_the_same_partition_end_one_by_one(world: World) -> None:
    async def scenario() -> None:
        await started(world)
        await commit(world, 5)
        await commit(world, 6, producer_id=78)
        await end(world, committed=True)
        assert world.groups.transactional.is_pending(GROUP, P0)
        await end(world, committed=True, producer_id=78)
        assert (offset_of(world), world.groups.transactional.is_pending(GROUP, P0)) == (6, False)

    run(scenario())


@pytest.mark.parametrize("committed", [True, False])
def test_a_restart_finds_open_and_ended_transactions_in_the_log(world: World, committed: bool) -> None:
    async def scenario() -> None:
        await started(world)
        await commit(world, 5)
        await commit(world, 7, partition=P1, producer_id=78)
        await end(world, committed=committed)
        await world.restart()
        assert offset_of(world) == (5 if committed else None)
        assert world.groups.transactional.is_pending(GROUP, P1)
        assert world.groups.group(GROUP) is not None
        await end(world, committed=True, producer_id=78)
        assert offset_of(world, P1) == 7

    run(scenario())


def test_a_marker_that_overtakes_the_write_of_its_commit_is_not_lost(world: World) -> None:
    async def scenario() -> None:
        await started(world)
        world.replicas.gate = asyncio.Event()
        writing = asyncio.create_task(commit(world, 5))
        await asyncio.sleep(0)
        await end(world, committed=True)
        world.replicas.gate.set()
        await writing
        assert (offset_of(world), world.groups.transactional.is_pending(GROUP, P0)) == (5, False)

    run(scenario())


def test_markers_of_others_are_not_kept_while_a_commit_is_written(world: World) -> None:
    async def scenario() -> None:
        await started(world)
        gate = world.replicas.gate = asyncio.Event()
        writing = asyncio.ensure_future(commit(world, 5))
        await asyncio.sleep(0)
        log = world.groups._log
        partition = log.partition_of("g")
        for producer_id in range(PRODUCER + 1, PRODUCER + 100):
            log.end_transaction(partition, producer_id, 100, committed=True)
        assert log._early_markers == {}
        log.end_transaction(partition, PRODUCER, 100, committed=True)
        assert [*log._early_markers] == [(partition, PRODUCER)]
        gate.set()
        await writing
        assert log._early_markers == {}
        assert offset_of(world) == 5

    run(scenario())


def test_a_marker_that_comes_while_the_log_is_read_is_not_lost(world: World, settled: Callable[[], Any]) -> None:
    async def scenario() -> None:
        await started(world)
        await commit(world, 5)
        key = await world.groups.offsets_partition(GROUP)
        log = world.replicas.log(key)
        before = list(log.stored)
        world.metadata.subscribers.clear()
        world.groups = world.new_coordinator()
        await world.groups.start()
        await end(world, committed=True)
        log.stored[:] = before  # what had been read when the marker came
        await settled()
        assert (offset_of(world), world.groups.transactional.is_pending(GROUP, P0)) == (5, False)

    run(scenario())


def test_offsets_do_not_expire_under_an_open_transaction(world: World) -> None:
    """KAFKA-13636."""

    async def scenario() -> None:
        await started(world)
        await plain_commit(world, 3)
        await commit(world, 5)
        world.clock.ms += 2 * 60_000 * world.config.offsets_retention_minutes
        await world.groups.expire()
        assert offset_of(world) == 3
        await end(world, committed=False)
        await world.groups.expire()
        assert world.groups.group(GROUP) is None

    run(scenario())


def test_a_group_of_pending_offsets_alone_is_not_removed(world: World) -> None:
    async def scenario() -> None:
        await started(world)
        await commit(world, 5)
        await world.groups.expire()
        assert world.groups.group(GROUP) is not None
        await end(world, committed=True)
        assert offset_of(world) == 5

    run(scenario())


def test_deleting_a_group_deletes_what_is_pending(world: World) -> None:
    async def scenario() -> None:
        await started(world)
        await commit(world, 5)
        await world.groups.delete_group(GROUP)
        await end(world, committed=True)
        assert world.groups.committed(GROUP).get(P0) is None
        await world.restart()
        assert world.groups.committed(GROUP).get(P0) is None

    run(scenario())


def test_deleting_an_offset_deletes_the_pending_one_too(world: World) -> None:
    async def scenario() -> None:
        await started(world)
        await commit(world, 5)
        assert await world.groups.delete_offsets(GROUP, [P0]) == {P0: ErrorCode.none}
        await end(world, committed=True)
        assert offset_of(world) is None

    run(scenario())


def test_pending_offsets_of_a_deleted_topic_are_forgotten(world: World, settled: Callable[[], Any]) -> None:
    async def scenario() -> None:
        await started(world)
        await commit(world, 5)
        world.metadata.remove("t")
        await settled()
        assert not world.groups.transactional.is_pending(GROUP, P0)

    run(scenario())


def test_a_pending_commit_for_a_topic_that_is_made_again_outlives_the_tombstones_of_the_one_before(
    world: World, settled: Callable[[], Any]
) -> None:
    async def scenario() -> None:
        await started(world)
        await commit(world, 5, partition=P1)
        await commit(world, 5, producer_id=78)
        world.replicas.gate = asyncio.Event()
        world.metadata.remove("t")
        await settled()
        world.metadata.add("t")
        committing = asyncio.ensure_future(commit(world, 7, producer_id=79))
        await settled()
        world.replicas.gate.set()
        await committing
        await settled()
        await end(world, committed=True, producer_id=79)
        assert offset_of(world) == 7
        await world.restart()
        assert offset_of(world) == 7

    run(scenario())


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ({}, ErrorCode.none),  # a producer that knows nothing of groups (before KIP-447)
        ({"generation_id": 1, "member_id": "nobody"}, ErrorCode.unknown_member_id),
        ({"generation_id": 0}, ErrorCode.illegal_generation),
        ({"generation_id": 2}, ErrorCode.illegal_generation),
        ({"generation_id": 1}, ErrorCode.none),
    ],
)
def test_a_member_commits_in_its_generation_only(world: World, member: dict[str, Any], code: ErrorCode) -> None:
    async def scenario() -> None:
        await started(world)
        joined = await world.join(GROUP)
        await world.sync(GROUP, joined)
        named = {"member_id": joined.member_id, **member} if member else {}
        try:
            await commit(world, 5, **named)
        except KafkaError as error:
            assert error.code is code
        else:
            assert code is ErrorCode.none

    run(scenario())


def test_a_generation_of_a_group_that_does_not_exist_is_refused(world: World) -> None:
    async def scenario() -> None:
        await started(world)
        with pytest.raises(KafkaError, match="illegal_generation"):
            await commit(world, 5, generation_id=0)

    run(scenario())


def test_the_batch_is_a_coordinators_own(world: World) -> None:
    async def scenario() -> None:
        await started(world)
        await commit(world, 5)
        key = await world.groups.offsets_partition(GROUP)
        assert key.topic == OFFSETS_TOPIC
        header = RecordBatchHeader.parse(world.replicas.log(key).stored[-1])
        assert header.is_transactional
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (PRODUCER, EPOCH, -1)

    run(scenario())
