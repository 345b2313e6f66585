"""Transitions that are not replicated in time: the id is blocked until the log decides, or the leadership goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.state_topic.log import FINISH_MS_MAX, UndecidedWriteError
from headwater.logtier.state_topic.topic import partition_for
from headwater.logtier.transaction.coordinator import WRITE_TIMEOUT_MS
from headwater.logtier.transaction.metadata import ProducerIdAndEpoch, TransactionState
from headwater.logtier.transaction.topic import TRANSACTION_TOPIC
from tests.unit.state_topic.surroundings import settle
from tests.unit.transaction.world import World, code_of
from tests.virtual_time import run_virtually

ID = "payments"
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
V2 = 2

Scenario = Callable[[World, ProducerIdAndEpoch, asyncio.Event], Coroutine[Any, Any, None]]


def in_transaction(scenario: Scenario) -> None:
    """Runs a scenario with an open transaction in P0, after which the coordinator's writes wait for a gate."""

    async def main() -> None:
        world = World()
        coordinator = await world.start()
        producer = await coordinator.init_producer(ID, 60_000, None)
        await coordinator.add_partitions(ID, producer, {P0}, client_version=V2)
        world.replicas.gate = asyncio.Event()
        await scenario(world, producer, world.replicas.gate)
        await world.coordinator.stop()

    run_virtually(main())


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def timed_out_end(world: World, producer: ProducerIdAndEpoch) -> None:
    """A commit that is in the log and not replicated: the producer is told to repeat."""
    began_s = now_s()
    with pytest.raises(UndecidedWriteError) as caught:
        await world.coordinator.end(ID, producer, commit=True, client_version=V2)
    assert caught.value.code is ErrorCode.coordinator_not_available
    assert now_s() - began_s == pytest.approx(WRITE_TIMEOUT_MS / 1000)


def listed(world: World) -> dict[str, TransactionState]:
    return {name: metadata.state for name, metadata in world.coordinator.transactions()}


def attempts(world: World, producer: ProducerIdAndEpoch) -> list[Coroutine[Any, Any, Any]]:
    coordinator = world.coordinator
    return [
        coordinator.end(ID, producer, commit=False, client_version=V2),
        coordinator.end(ID, producer, commit=True, client_version=V2),
        coordinator.init_producer(ID, 60_000, None),
        coordinator.add_partitions(ID, producer, {P1}, client_version=V2),
    ]


def test_an_id_with_an_unknown_outcome_is_blocked_until_the_watermark_has_passed_it() -> None:
    async def scenario(world: World, producer: ProducerIdAndEpoch, gate: asyncio.Event) -> None:
        ongoing = world.coordinator.describe(ID)
        assert ongoing.state is TransactionState.ONGOING
        await timed_out_end(world, producer)
        writes = world.replicas.writes
        for attempt in attempts(world, producer):
            assert await code_of(attempt) is ErrorCode.concurrent_transactions
        world.clock.ms += 120_000
        await world.coordinator.abort_timed_out()
        assert (world.replicas.writes, world.replicas.markers) == (writes, {})
        # Shown is what is committed.
        assert world.coordinator.describe(ID) == ongoing
        assert listed(world) == {ID: TransactionState.ONGOING}
        gate.set()
        await settle()
        assert world.coordinator.describe(ID).state is TransactionState.COMPLETE_COMMIT
        assert listed(world) == {ID: TransactionState.COMPLETE_COMMIT}
        assert world.told == [(P0, producer.producer_id, True)]
        assert world.live() == world.replayed()
        # The repeated commit has the answer of the first one.
        ended = await world.coordinator.end(ID, producer, commit=True, client_version=V2)
        assert ended == ProducerIdAndEpoch(producer.producer_id, 1)

    in_transaction(scenario)


def test_an_id_with_an_unknown_outcome_is_free_when_the_leadership_goes_and_what_the_log_says_counts() -> None:
    async def scenario(world: World, producer: ProducerIdAndEpoch, gate: asyncio.Event) -> None:
        await timed_out_end(world, producer)
        index = partition_for(ID, 2)
        key = TopicPartition(TRANSACTION_TOPIC, index)
        world.replicas.elsewhere.add(index)
        world.metadata.move(TRANSACTION_TOPIC, index, leader=2, leader_epoch=1)
        await settle()
        for attempt in attempts(world, producer):
            assert await code_of(attempt) is ErrorCode.not_coordinator
        # The other leader did not have the record.
        world.replicas.log(key).stored.pop()
        world.replicas.gate = None
        world.replicas.elsewhere.discard(index)
        world.metadata.move(TRANSACTION_TOPIC, index, leader=1, leader_epoch=2)
        gate.set()
        await settle()
        assert world.coordinator.describe(ID).state is TransactionState.ONGOING
        assert world.replicas.markers == {}
        ended = await world.coordinator.end(ID, producer, commit=False, client_version=V2)
        await settle()
        assert (ended.epoch, world.told) == (1, [(P0, producer.producer_id, False)])

    in_transaction(scenario)


def test_a_new_id_whose_first_write_is_unknown_is_blocked_too() -> None:
    async def scenario(world: World, _: ProducerIdAndEpoch, gate: asyncio.Event) -> None:
        coordinator = world.coordinator
        assert await code_of(coordinator.init_producer("orders", 60_000, None)) is ErrorCode.coordinator_not_available
        assert await code_of(coordinator.init_producer("orders", 60_000, None)) is ErrorCode.concurrent_transactions
        with pytest.raises(KafkaError, match="transactional_id_not_found"):
            coordinator.describe("orders")
        assert listed(world).keys() == {ID}
        gate.set()
        await settle()
        assert (await coordinator.init_producer("orders", 60_000, None)).epoch == 1
        assert world.live() == world.replayed()

    in_transaction(scenario)


def test_a_completion_that_is_not_replicated_is_written_once() -> None:
    """A second record of the same transition could follow one of the next transaction."""

    async def scenario(world: World, producer: ProducerIdAndEpoch, gate: asyncio.Event) -> None:
        world.replicas.gate = None
        markers = world.replicas.marker_gate = asyncio.Event()
        await world.coordinator.end(ID, producer, commit=True, client_version=V2)
        world.replicas.gate = gate  # The completion waits.
        markers.set()
        await settle()
        writes = world.replicas.writes
        await asyncio.sleep(10 * WRITE_TIMEOUT_MS / 1000)
        assert world.coordinator.describe(ID).state is TransactionState.PREPARE_COMMIT
        assert await code_of(world.coordinator.init_producer(ID, 60_000, None)) is ErrorCode.concurrent_transactions
        gate.set()
        await settle()
        assert world.coordinator.describe(ID).state is TransactionState.COMPLETE_COMMIT
        assert (world.replicas.writes, len(world.replicas.markers[P0])) == (writes, 1)

    in_transaction(scenario)


def test_a_stop_is_bounded_although_a_write_is_never_replicated() -> None:
    async def scenario(world: World, producer: ProducerIdAndEpoch, _: asyncio.Event) -> None:
        ending = asyncio.ensure_future(world.coordinator.end(ID, producer, commit=True, client_version=V2))
        await settle()
        began_s = now_s()
        await world.coordinator.stop()
        assert now_s() - began_s == pytest.approx(FINISH_MS_MAX / 1000)
        assert await code_of(ending) is ErrorCode.coordinator_not_available
        # The next start finds the record and completes the outcome.
        world.replicas.gate = None
        await world.restart()
        assert world.coordinator.describe(ID).state is TransactionState.COMPLETE_COMMIT

    in_transaction(scenario)


def test_ids_are_served_only_when_what_was_loaded_is_committed_and_outcomes_are_completed_then() -> None:
    async def scenario(world: World, producer: ProducerIdAndEpoch, gate: asyncio.Event) -> None:
        ending = asyncio.ensure_future(world.coordinator.end(ID, producer, commit=True, client_version=V2))
        await settle()
        await world.restart()
        assert await code_of(ending) is ErrorCode.coordinator_not_available
        await asyncio.sleep(1_000)
        for attempt in attempts(world, producer):
            assert await code_of(attempt) is ErrorCode.coordinator_load_in_progress
        # As in Kafka, whose clients ask again: a list in which these ids are missing looks whole.
        with pytest.raises(KafkaError, match="coordinator_load_in_progress"):
            world.coordinator.transactions()
        assert list(world.coordinator.loaded_transactions()) == []
        assert world.replicas.markers == {}
        gate.set()
        await settle()
        assert world.coordinator.describe(ID).state is TransactionState.COMPLETE_COMMIT
        assert world.told == [(P0, producer.producer_id, True)]

    in_transaction(scenario)
