"""Markers: when they take effect, which leaders write them, and what their refusals do to the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.state_topic.topic import partition_for
from headwater.logtier.transaction.coordinator import RETRY_BACKOFF_MS
from headwater.logtier.transaction.markers import Marker as RequestedMarker
from headwater.logtier.transaction.metadata import ProducerIdAndEpoch, TransactionState
from headwater.logtier.transaction.topic import TRANSACTION_TOPIC
from tests.topic_images import with_leader_epoch
from tests.unit.state_topic.surroundings import settle
from tests.unit.transaction.world import Marker, World, code_of
from tests.virtual_time import run_virtually

ID = "payments"
P0, P1, P2 = (TopicPartition("t", index) for index in range(3))
V2 = 2

Scenario = Callable[[World, ProducerIdAndEpoch], Coroutine[Any, Any, None]]


def with_transaction(scenario: Scenario, *partitions: TopicPartition) -> None:
    async def main() -> None:
        world = World()
        coordinator = await world.start()
        producer = await coordinator.init_producer(ID, 60_000, None)
        await coordinator.add_partitions(ID, producer, set(partitions), client_version=V2)
        await scenario(world, producer)
        await world.coordinator.stop()

    run_virtually(main())


async def end(world: World, producer: ProducerIdAndEpoch, *, commit: bool = True) -> None:
    await world.coordinator.end(ID, producer, commit=commit, client_version=V2)
    await settle()


async def pause() -> None:
    """The time after which refused markers are tried again."""
    await asyncio.sleep(2 * RETRY_BACKOFF_MS / 1000)
    await settle()


def state(world: World) -> TransactionState:
    return world.coordinator.describe(ID).state


def test_a_marker_takes_effect_only_when_it_is_replicated() -> None:
    """A commit of offsets that readers have seen must not be gone with the leader."""

    async def scenario(world: World, producer: ProducerIdAndEpoch) -> None:
        gate = world.replicas.marker_gate = asyncio.Event()
        await end(world, producer)
        assert list(world.replicas.markers) == [P0, P1]
        assert (world.told, state(world)) == ([], TransactionState.PREPARE_COMMIT)
        gate.set()
        await settle()
        assert world.told == [(each, producer.producer_id, True) for each in (P0, P1)]
        assert state(world) is TransactionState.COMPLETE_COMMIT

    with_transaction(scenario, P0, P1)


@pytest.mark.parametrize("error", [None, KafkaError(ErrorCode.not_leader_or_follower, "deposed")])
def test_a_marker_whose_write_has_timed_out_takes_effect_once_it_is_committed(error: KafkaError | None) -> None:
    """It is in the log: a replay has it. Under another leader that one's log decides."""

    async def scenario(world: World, producer: ProducerIdAndEpoch) -> None:
        gate = world.replicas.marker_gate = asyncio.Event()
        committed = world.replicas.commitment_gate = asyncio.Event()
        world.replicas.error_at_replication = KafkaError(ErrorCode.request_timed_out, "slow")
        world.replicas.error_at_commitment = error
        await end(world, producer)
        gate.set()
        await settle()
        assert (world.told, state(world)) == ([], TransactionState.PREPARE_COMMIT)
        committed.set()
        await settle()
        assert world.told == ([] if error else [(P0, producer.producer_id, True)])
        assert state(world) is TransactionState.PREPARE_COMMIT, "nobody has answered the coordinator yet"

    with_transaction(scenario, P0)


def test_a_marker_that_is_not_replicated_has_no_effect_and_is_written_again() -> None:
    async def scenario(world: World, producer: ProducerIdAndEpoch) -> None:
        gate = world.replicas.marker_gate = asyncio.Event()
        world.replicas.error_at_replication = KafkaError(ErrorCode.request_timed_out, "slow")
        await end(world, producer)
        gate.set()
        await settle()
        assert (world.told, state(world)) == ([], TransactionState.PREPARE_COMMIT)
        world.replicas.marker_gate = None
        await pause()
        assert world.replicas.markers[P0] == [Marker(producer.producer_id, 1, True, V2)] * 2
        assert world.told == [(P0, producer.producer_id, True)]
        assert state(world) is TransactionState.COMPLETE_COMMIT

    with_transaction(scenario, P0)


def test_partitions_of_other_leaders_get_their_markers_from_them() -> None:
    async def scenario(world: World, producer: ProducerIdAndEpoch) -> None:
        world.metadata.move("t", 1, leader=2, leader_epoch=1)
        world.metadata.move("t", 2, leader=3, leader_epoch=1)
        world.metadata.move(TRANSACTION_TOPIC, partition_for(ID, 2), leader=1, leader_epoch=4)
        await settle()
        await end(world, producer)
        assert list(world.replicas.markers) == [P0]
        marker = RequestedMarker(producer.producer_id, 1, True, 4, V2)
        assert world.others.asked == [(2, marker, {P1}), (3, marker, {P2})]
        assert world.replicas.coordinator_epochs == [4]
        # Their coordinators of groups hear of their markers, and this one of its own.
        assert world.told == [(P0, producer.producer_id, True)]
        assert state(world) is TransactionState.COMPLETE_COMMIT

    with_transaction(scenario, P0, P1, P2)


def test_markers_carry_the_epoch_of_the_load_not_that_of_the_newest_image() -> None:
    """Else a coordinator that does not know yet that it is deposed would pass for its successor, and fence it."""

    async def scenario(world: World, producer: ProducerIdAndEpoch) -> None:
        world.metadata.move("t", 1, leader=2, leader_epoch=1)
        world.metadata.move(TRANSACTION_TOPIC, partition_for(ID, 2), leader=1, leader_epoch=4)
        await settle()
        gate = world.replicas.gate = asyncio.Event()
        ending = asyncio.ensure_future(end(world, producer))
        await settle()
        # The image is newer than what the coordinator has heard of.
        loaded, world.metadata.image = world.metadata.image, with_leader_epoch(world.metadata.image, 9)
        gate.set()
        await ending
        [(broker_id, marker, _)] = world.others.asked
        assert (broker_id, marker.coordinator_epoch, world.replicas.coordinator_epochs) == (2, 4, [4])
        assert world.coordinator.describe(ID).state is TransactionState.PREPARE_COMMIT
        # When it has, it is the coordinator of the later epoch.
        world.metadata.image = loaded
        world.metadata.move(TRANSACTION_TOPIC, partition_for(ID, 2), leader=1, leader_epoch=9)
        await settle()
        assert ([marker.coordinator_epoch for _, marker, _ in world.others.asked], state(world)) == (
            [4, 9],
            TransactionState.COMPLETE_COMMIT,
        )

    with_transaction(scenario, P0, P1)


def test_only_the_refused_partitions_are_tried_again_at_their_leader_of_then() -> None:
    async def scenario(world: World, producer: ProducerIdAndEpoch) -> None:
        for index in (0, 1):
            world.metadata.move("t", index, leader=2, leader_epoch=1)
        world.others.codes[P1] = ErrorCode.not_leader_or_follower
        await end(world, producer)
        assert state(world) is TransactionState.PREPARE_COMMIT
        world.metadata.move("t", 1, leader=3, leader_epoch=2)
        world.others.codes.clear()
        await pause()
        asked = [(broker_id, partitions) for broker_id, _, partitions in world.others.asked]
        assert asked == [(2, {P0, P1}), (3, {P1})]
        assert state(world) is TransactionState.COMPLETE_COMMIT

    with_transaction(scenario, P0, P1)


@pytest.mark.parametrize("is_led", [True, False])
def test_a_leader_that_does_not_answer_or_is_missing_holds_up_its_partitions_alone(is_led: bool) -> None:
    async def scenario(world: World, producer: ProducerIdAndEpoch) -> None:
        world.metadata.move("t", 1, leader=2 if is_led else -1, leader_epoch=1)
        world.others.error = KafkaError(ErrorCode.network_exception, "no answer")
        await end(world, producer)
        assert (list(world.replicas.markers), state(world)) == ([P0], TransactionState.PREPARE_COMMIT)
        assert len(world.others.asked) == int(is_led)
        world.others.error = None
        world.metadata.move("t", 1, leader=2, leader_epoch=2)
        await pause()
        assert len(world.replicas.markers[P0]) == 1
        assert state(world) is TransactionState.COMPLETE_COMMIT

    with_transaction(scenario, P0, P1)


def test_a_leader_that_has_records_of_a_later_transaction_needs_no_marker() -> None:
    async def scenario(world: World, producer: ProducerIdAndEpoch) -> None:
        world.metadata.move("t", 1, leader=2, leader_epoch=1)
        world.others.codes[P1] = ErrorCode.invalid_producer_epoch
        await end(world, producer)
        assert state(world) is TransactionState.COMPLETE_COMMIT

    with_transaction(scenario, P0, P1)


@pytest.mark.parametrize("is_remote", [True, False])
def test_a_coordinator_that_another_one_has_fenced_writes_no_record_and_leaves_the_id_alone(is_remote: bool) -> None:
    async def scenario(world: World, producer: ProducerIdAndEpoch) -> None:
        if is_remote:
            world.metadata.move("t", 0, leader=2, leader_epoch=1)
            world.others.codes[P0] = ErrorCode.transaction_coordinator_fenced
        else:
            world.replicas.refused[P0] = KafkaError(ErrorCode.transaction_coordinator_fenced, "epoch 9")
        writes = world.replicas.writes
        await end(world, producer)
        assert world.replicas.writes == writes + 1, "the outcome, and no completion"
        world.replicas.refused.clear()
        world.others.codes.clear()
        await asyncio.sleep(1_000)
        assert (world.replicas.writes, len(world.others.asked)) == (writes + 1, int(is_remote))
        assert (world.told, state(world)) == ([], TransactionState.PREPARE_COMMIT)
        assert await code_of(world.coordinator.init_producer(ID, 60_000, None)) is ErrorCode.concurrent_transactions

    with_transaction(scenario, P0)
