"""What was begun for a transactional id that is not coordinated here any more, or anew, changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.transaction.metadata import TransactionState
from headwater.logtier.transaction.topic import TRANSACTION_TOPIC
from tests.unit.state_topic.surroundings import settle
from tests.unit.transaction.world import World, code_of

#: In partition 0 and in partition 1.
FIRST, SECOND = "stock", "payments"
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
V2 = 2


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def begin(world: World, *ids: str, partition: TopicPartition | None = None) -> None:
    """A producer for each id, with a transaction if it has a partition."""
    coordinator = await world.start()
    assert [coordinator._log.partition_of(each) for each in (FIRST, SECOND)] == [0, 1]
    for each in ids:
        producer = await coordinator.init_producer(each, 60_000, None)
        if partition is not None:
            await coordinator.add_partitions(each, producer, {partition}, client_version=V2)


async def load_anew(world: World, index: int, meanwhile: Callable[[], None] = lambda: None) -> None:
    """The leadership of a partition goes to another broker, which may write there, and comes back."""
    world.replicas.elsewhere.add(index)
    world.metadata.move(TRANSACTION_TOPIC, index, leader=2, leader_epoch=1)
    await settle()
    meanwhile()
    world.replicas.elsewhere.discard(index)
    world.metadata.move(TRANSACTION_TOPIC, index, leader=1, leader_epoch=2)
    await settle()


async def topic_made_anew(world: World) -> None:
    world.metadata.remove(TRANSACTION_TOPIC)
    world.replicas.logs.clear()
    await world.coordinator.find(FIRST)
    await settle()


def test_a_transaction_that_timed_out_under_a_topic_that_is_gone_is_not_written_to_the_new_one(world: World) -> None:
    async def scenario() -> None:
        await begin(world, FIRST, SECOND, partition=P0)
        world.clock.ms += 60_001
        world.replicas.gate = asyncio.Event()
        aborting = asyncio.create_task(world.coordinator.abort_timed_out())
        await settle()  # the first one is being written
        await topic_made_anew(world)
        world.replicas.gate.set()
        world.replicas.gate = None
        await aborting
        await settle()
        assert world.live() == world.replayed() == {}

    run(scenario())


def test_a_transaction_that_timed_out_and_has_ended_elsewhere_is_not_aborted(world: World) -> None:
    async def scenario() -> None:
        await begin(world, FIRST, SECOND, partition=P0)
        ended = replace(
            world.coordinator.describe(SECOND), state=TransactionState.COMPLETE_COMMIT, partitions=frozenset()
        )
        world.clock.ms += 60_001
        world.replicas.gate = asyncio.Event()
        aborting = asyncio.create_task(world.coordinator.abort_timed_out())
        await settle()
        await load_anew(world, 1, lambda: world.store(SECOND, ended))
        world.replicas.gate.set()
        await aborting
        await settle()
        assert world.coordinator.describe(SECOND).state is TransactionState.COMPLETE_COMMIT
        assert world.live() == world.replayed()

    run(scenario())


def test_an_id_that_is_in_use_again_is_not_removed_because_it_had_expired(world: World) -> None:
    async def scenario() -> None:
        await begin(world, FIRST, SECOND)
        used = world.coordinator.describe(SECOND)
        world.clock.ms += world.config.transactional_id_expiration_ms
        used = replace(used, producer_epoch=5, last_update_ms=world.clock.ms)
        world.replicas.gate = asyncio.Event()
        removing = asyncio.create_task(world.coordinator.remove_expired())
        await settle()
        await load_anew(world, 1, lambda: world.store(SECOND, used))
        world.replicas.gate.set()
        await removing
        assert world.coordinator.describe(SECOND).producer_epoch == 5
        assert world.live() == world.replayed()

    run(scenario())


class Flush:
    """The device, which takes its time."""

    def __init__(self) -> None:
        self.done: Callable[[KafkaError | None], None] = lambda _: None

    def add_done_callback(self, done: Callable[[KafkaError | None], None]) -> None:
        self.done = done


@pytest.mark.parametrize("error", [None, KafkaError(ErrorCode.kafka_storage_error)])
def test_markers_that_an_earlier_epoch_waits_for_complete_no_later_transaction(
    world: World, error: KafkaError | None
) -> None:
    async def scenario() -> None:
        await begin(world, SECOND, partition=P0)
        coordinator = world.coordinator
        flush = world.replicas.flush = Flush()
        producer = coordinator.describe(SECOND).producer
        producer = await coordinator.end(SECOND, producer, commit=True, client_version=V2)
        await settle()
        world.replicas.flush = None
        await load_anew(world, 1)
        assert coordinator.describe(SECOND).state is TransactionState.COMPLETE_COMMIT
        await coordinator.add_partitions(SECOND, producer, {P1}, client_version=V2)
        flush.done(error)
        await settle()
        assert world.live() == world.replayed()
        assert coordinator.describe(SECOND).state is TransactionState.ONGOING

    run(scenario())


def test_between_a_new_epoch_and_the_loading_nothing_is_written(world: World) -> None:
    """What this broker knows may be less than what the leader in between has written."""

    async def scenario() -> None:
        await begin(world, SECOND, partition=P0)
        producer = world.coordinator.describe(SECOND).producer
        ended = replace(
            world.coordinator.describe(SECOND), state=TransactionState.COMPLETE_ABORT, partitions=frozenset()
        )
        world.metadata.move(TRANSACTION_TOPIC, 1, leader=2, leader_epoch=1)
        world.store(SECOND, ended)
        world.metadata.move(TRANSACTION_TOPIC, 1, leader=1, leader_epoch=2)
        added = world.coordinator.add_partitions(SECOND, producer, {P1}, client_version=V2)
        assert await code_of(added) is ErrorCode.not_coordinator
        await settle()
        assert world.live() == world.replayed()
        assert world.coordinator.describe(SECOND).state is TransactionState.COMPLETE_ABORT

    run(scenario())


def test_an_id_whose_producer_begins_while_others_are_removed_stays(world: World) -> None:
    async def scenario() -> None:
        await begin(world, FIRST, SECOND)
        world.clock.ms += world.config.transactional_id_expiration_ms
        gate = world.replicas.gate = asyncio.Event()
        removing = asyncio.create_task(world.coordinator.remove_expired())
        await settle()  # the first one is being removed
        world.replicas.gate = None
        producer = await world.coordinator.init_producer(SECOND, 60_000, None)
        gate.set()
        await removing
        assert world.coordinator.describe(SECOND).producer == producer
        assert world.live() == world.replayed()

    run(scenario())
