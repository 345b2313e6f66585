"""The transaction coordinator's shell: writes, markers, restarts, time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.transaction.metadata import ProducerIdAndEpoch, TransactionMetadata, TransactionState
from headwater.logtier.transaction.topic import TRANSACTION_TOPIC
from headwater.logtier.transaction.verifier import VerifiedPartition
from tests.unit.state_topic.surroundings import settle
from tests.unit.transaction.world import Marker, World, code_of

ID = "payments"
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
V1, V2 = 0, 2


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def begun(world: World, *partitions: TopicPartition, version: int = V2) -> ProducerIdAndEpoch:
    """A producer with a transaction."""
    coordinator = await world.start()
    producer = await coordinator.init_producer(ID, 60_000, None)
    if partitions:
        await coordinator.add_partitions(ID, producer, set(partitions), client_version=version)
    return producer


def test_the_topic_is_created_when_it_is_first_needed(world: World) -> None:
    async def scenario() -> None:
        assert (await (await world.start()).find(ID)).id == 1
        [topic] = world.controller.created
        assert (topic.name, topic.num_partitions) == (TRANSACTION_TOPIC, 2)
        assert topic.configs["cleanup.policy"] == "compact"

    run(scenario())


@pytest.mark.parametrize("commit", [True, False])
def test_an_outcome_is_in_the_log_before_its_markers_and_complete_after_them(world: World, commit: bool) -> None:
    async def scenario() -> None:
        producer = await begun(world, P0, P1)
        answered = await world.coordinator.end(ID, producer, commit=commit, client_version=V2)
        assert answered == ProducerIdAndEpoch(producer.producer_id, 1)
        await settle()
        # The outcome is in the log before any marker, and complete after the last one.
        assert [states[ID].is_prepared for states in world.states_at_markers] == [True, True]
        marker = Marker(producer.producer_id, 1, commit, 2)
        assert world.replicas.markers == {P0: [marker], P1: [marker]}
        assert world.told == [(P0, producer.producer_id, commit), (P1, producer.producer_id, commit)]
        expected = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        assert world.coordinator.describe(ID).state is expected
        assert world.live() == world.replayed()

    run(scenario())


def test_a_restart_between_the_outcome_and_the_markers_writes_them(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world, P0, P1)
        world.replicas.refused[P1] = KafkaError(ErrorCode.kafka_storage_error)
        await world.coordinator.end(ID, producer, commit=True, client_version=V2)
        await settle()
        assert P1 not in world.replicas.markers
        world.replicas.refused.clear()
        await world.restart()
        assert world.replicas.markers[P1] == [Marker(producer.producer_id, 1, True, 2)]
        assert world.coordinator.describe(ID).state is TransactionState.COMPLETE_COMMIT

    run(scenario())


def test_markers_that_a_log_refuses_are_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.logtier.transaction.coordinator.RETRY_BACKOFF_MS", 1)

    async def scenario() -> None:
        producer = await begun(world, P0, P1)
        world.replicas.refused[P1] = KafkaError(ErrorCode.not_enough_replicas)
        await world.coordinator.end(ID, producer, commit=True, client_version=V2)
        await settle()
        assert await code_of(world.coordinator.init_producer(ID, 60_000, None)) is ErrorCode.concurrent_transactions
        world.replicas.refused.clear()
        await world.complete(ID)
        assert [len(markers) for markers in world.replicas.markers.values()] == [1, 1]

    run(scenario())


def test_the_partitions_of_a_deleted_topic_need_no_marker(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world, P0)
        world.metadata.remove("t")
        await world.coordinator.end(ID, producer, commit=True, client_version=V2)
        await settle()
        assert world.coordinator.describe(ID).state is TransactionState.COMPLETE_COMMIT
        assert not world.replicas.markers

    run(scenario())


def test_a_marker_that_a_later_one_has_overtaken_holds_nothing_up(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world, P0)
        world.replicas.refused[P0] = KafkaError(ErrorCode.invalid_producer_epoch)
        await world.coordinator.end(ID, producer, commit=False, client_version=V2)
        await settle()
        assert world.coordinator.describe(ID).state is TransactionState.COMPLETE_ABORT
        assert not world.told

    run(scenario())


def test_a_second_producer_aborts_the_transaction_of_the_first(world: World) -> None:
    async def scenario() -> None:
        first = await begun(world, P0)
        coordinator = world.coordinator
        assert await code_of(coordinator.init_producer(ID, 60_000, None)) is ErrorCode.concurrent_transactions
        await settle()
        second = await coordinator.init_producer(ID, 60_000, None)
        assert second == ProducerIdAndEpoch(first.producer_id, 2)
        assert world.replicas.markers[P0] == [Marker(first.producer_id, 1, False, 2)]
        ended = coordinator.end(ID, first, commit=True, client_version=V2)
        assert await code_of(ended) is ErrorCode.producer_fenced

    run(scenario())


def test_a_transaction_that_is_open_for_too_long_is_aborted(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world, P0)
        await world.coordinator.abort_timed_out()
        assert world.coordinator.describe(ID).state is TransactionState.ONGOING
        world.clock.ms += 60_001
        await world.coordinator.abort_timed_out()
        await settle()
        assert world.coordinator.describe(ID).state is TransactionState.COMPLETE_ABORT
        added = world.coordinator.add_partitions(ID, producer, {P1}, client_version=V1)
        assert await code_of(added) is ErrorCode.producer_fenced

    run(scenario())


def test_an_id_that_is_not_used_is_forgotten_with_a_tombstone(world: World) -> None:
    async def scenario() -> None:
        await begun(world)
        world.clock.ms += world.config.transactional_id_expiration_ms
        await world.coordinator.remove_expired()
        assert world.live() == world.replayed() == {}
        with pytest.raises(KafkaError, match="transactional_id_not_found"):
            world.coordinator.describe(ID)
        await world.restart()
        assert world.live() == {}

    run(scenario())


def test_an_id_with_an_open_transaction_does_not_expire(world: World) -> None:
    async def scenario() -> None:
        await begun(world, P0)
        world.clock.ms += world.config.transactional_id_expiration_ms
        await world.coordinator.remove_expired()
        assert ID in world.replayed()

    run(scenario())


def test_a_refused_tombstone_leaves_the_id_usable(world: World) -> None:
    async def scenario() -> None:
        await begun(world)
        world.clock.ms += world.config.transactional_id_expiration_ms
        world.replicas.error = KafkaError(ErrorCode.kafka_storage_error)
        await world.coordinator.remove_expired()
        world.replicas.error = None
        assert (await world.coordinator.init_producer(ID, 60_000, None)).epoch == 1

    run(scenario())


def test_a_transition_that_is_not_written_does_not_happen(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world, P0)
        coordinator = world.coordinator
        world.replicas.error = OSError(28, "No space left on device")
        for attempt in (
            coordinator.add_partitions(ID, producer, {P1}, client_version=V2),
            coordinator.end(ID, producer, commit=True, client_version=V2),
            coordinator.init_producer(ID, 60_000, None),
            coordinator.init_producer("another", 60_000, None),
        ):
            assert await code_of(attempt) is ErrorCode.not_coordinator
        world.replicas.error = None
        assert world.live() == world.replayed()
        assert coordinator.describe(ID).partitions == {P0}
        assert (await coordinator.end(ID, producer, commit=True, client_version=V2)).epoch == 1

    run(scenario())


def test_a_request_that_is_given_up_does_not_stop_its_transition(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world, P0)
        world.replicas.gate = asyncio.Event()
        ending = asyncio.create_task(world.coordinator.end(ID, producer, commit=True, client_version=V2))
        await settle()
        ending.cancel()
        await settle()
        world.replicas.gate.set()
        await settle()
        assert world.coordinator.describe(ID).state is TransactionState.COMPLETE_COMMIT

    run(scenario())


def test_only_one_transition_is_under_way(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world, P0)
        world.replicas.gate = asyncio.Event()
        ending = asyncio.create_task(world.coordinator.end(ID, producer, commit=True, client_version=V2))
        await settle()
        coordinator = world.coordinator
        for attempt in (
            coordinator.init_producer(ID, 60_000, None),
            coordinator.add_partitions(ID, producer, {P1}, client_version=V2),
            coordinator.end(ID, producer, commit=True, client_version=V2),
        ):
            assert await code_of(attempt) is ErrorCode.concurrent_transactions
        world.replicas.gate.set()
        assert (await ending).epoch == 1
        await world.complete(ID)

    run(scenario())


def test_partitions_that_come_together_are_added_by_one_write(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world)
        partitions = [TopicPartition("t", index) for index in range(3)]
        before = world.replicas.writes
        answers = [
            world.coordinator.verify_partition(VerifiedPartition(ID, *producer, partition, adds=True))
            for partition in (*partitions, partitions[0])
        ]
        assert all(answer is not None for answer in answers)
        await asyncio.gather(*(answer for answer in answers if answer is not None))
        assert world.replicas.writes == before + 1
        assert world.coordinator.describe(ID).partitions == set(partitions)
        assert world.coordinator.verify_partition(VerifiedPartition(ID, *producer, P0, adds=True)) is None

    run(scenario())


def test_partitions_that_come_during_a_write_are_added_by_the_next_one(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world)
        world.replicas.gate = asyncio.Event()
        first = world.coordinator.verify_partition(VerifiedPartition(ID, *producer, P0, adds=True))
        await settle()
        second = world.coordinator.verify_partition(VerifiedPartition(ID, *producer, P1, adds=True))
        await settle()
        world.replicas.gate.set()
        assert first is not None
        assert second is not None
        await asyncio.gather(first, second)
        assert world.coordinator.describe(ID).partitions == {P0, P1}

    run(scenario())


def test_a_failed_addition_is_told_to_everybody_who_waits_for_it(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world)
        answers = [
            world.coordinator.verify_partition(VerifiedPartition(ID, *producer, each, adds=True)) for each in (P0, P1)
        ]
        world.replicas.error = KafkaError(ErrorCode.not_enough_replicas)
        assert [await code_of(answer) for answer in answers] == [ErrorCode.coordinator_not_available] * 2
        world.replicas.error = None
        answer = world.coordinator.verify_partition(VerifiedPartition(ID, *producer, P0, adds=True))
        assert answer is not None
        await answer

    run(scenario())


def test_verification_adds_nothing(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world, P0)
        assert world.coordinator.verify_partition(VerifiedPartition(ID, *producer, P0, adds=False)) is None
        with pytest.raises(KafkaError, match="transaction_abortable"):
            world.coordinator.verify_partition(VerifiedPartition(ID, *producer, P1, adds=False))
        assert world.coordinator.verify_partitions(ID, producer, {P0, P1}) == {P1}

    run(scenario())


@pytest.mark.parametrize(
    ("timeout_ms", "code"),
    [
        (0, ErrorCode.invalid_transaction_timeout),
        (-1, ErrorCode.invalid_transaction_timeout),
        (900_001, ErrorCode.invalid_transaction_timeout),
        (900_000, ErrorCode.none),
    ],
)
def test_how_long_a_transaction_may_be_asked_to_be_open(world: World, timeout_ms: int, code: ErrorCode) -> None:
    async def scenario() -> None:
        coordinator = await world.start()
        assert await code_of(coordinator.init_producer(ID, timeout_ms, None)) is code

    run(scenario())


@pytest.mark.parametrize("name", ["", "x" * 40_000])
def test_what_is_no_transactional_id(world: World, name: str) -> None:
    async def scenario() -> None:
        coordinator = await world.start()
        producer = ProducerIdAndEpoch(1, 0)
        for attempt in (
            coordinator.init_producer(name, 60_000, None),
            coordinator.add_partitions(name, producer, {P0}, client_version=V1),
            coordinator.end(name, producer, commit=True, client_version=V1),
        ):
            assert await code_of(attempt) is ErrorCode.invalid_request

    run(scenario())


def test_an_unknown_id_has_no_producer(world: World) -> None:
    async def scenario() -> None:
        coordinator = await world.start()
        producer = ProducerIdAndEpoch(1, 0)
        for attempt in (
            coordinator.add_partitions(ID, producer, {P0}, client_version=V1),
            coordinator.end(ID, producer, commit=True, client_version=V1),
        ):
            assert await code_of(attempt) is ErrorCode.invalid_producer_id_mapping

    run(scenario())


def test_without_the_topic_this_is_not_the_coordinator(world: World) -> None:
    async def scenario() -> None:
        await world.coordinator.start()
        attempt = world.coordinator.init_producer(ID, 60_000, None)
        assert await code_of(attempt) is ErrorCode.not_coordinator

    run(scenario())


def test_a_deleted_topic_takes_everything_with_it(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world, P0)
        world.metadata.remove(TRANSACTION_TOPIC)
        world.replicas.logs.clear()
        await world.coordinator.find(ID)
        await settle()
        attempt = world.coordinator.end(ID, producer, commit=True, client_version=V2)
        assert await code_of(attempt) is ErrorCode.invalid_producer_id_mapping

    run(scenario())


def test_a_log_that_cannot_be_read_is_not_half_used(world: World) -> None:
    async def scenario() -> None:
        await begun(world)

        def damaged() -> Any:
            raise OSError(5, "Input/output error")

        for log in world.replicas.logs.values():
            log.batches = damaged  # type: ignore[method-assign]
        await world.restart()
        attempt = world.coordinator.init_producer(ID, 60_000, None)
        assert await code_of(attempt) is ErrorCode.coordinator_not_available

    run(scenario())


def test_when_the_broker_stops_writes_end_first(world: World) -> None:
    async def scenario() -> None:
        producer = await begun(world, P0)
        world.replicas.gate = asyncio.Event()
        ending = asyncio.create_task(world.coordinator.end(ID, producer, commit=True, client_version=V2))
        await settle()
        stopping = asyncio.create_task(world.coordinator.stop())
        await settle()
        assert not stopping.done()
        world.replicas.gate.set()
        await ending
        await stopping
        attempt = world.coordinator.init_producer(ID, 60_000, None)
        assert await code_of(attempt) is ErrorCode.coordinator_not_available

    run(scenario())


def test_a_request_that_came_before_the_broker_stops_begins_no_write_afterwards(world: World) -> None:
    async def scenario() -> None:
        await world.start()
        # It waits for its producer id when the broker stops.
        beginning = asyncio.create_task(world.coordinator.init_producer(ID, 60_000, None))
        writes = world.replicas.writes
        stopping = asyncio.create_task(world.coordinator.stop())
        assert await code_of(beginning) is ErrorCode.coordinator_not_available
        await stopping
        assert world.replicas.writes == writes
        assert world.replayed() == {}

    run(scenario())


def test_epochs_that_are_used_up_bring_a_new_producer_id(world: World) -> None:
    async def scenario() -> None:
        await begun(world)
        last = ProducerIdAndEpoch(5, 2**15 - 2)
        world.store(ID, TransactionMetadata(*last, timeout_ms=60_000, state=TransactionState.COMPLETE_COMMIT))
        coordinator = await world.restart()
        await coordinator.add_partitions(ID, last, {P0}, client_version=V2)
        rotated = await coordinator.end(ID, last, commit=True, client_version=V2)
        assert rotated == ProducerIdAndEpoch(1001, 0)
        await settle()
        assert world.replicas.markers[P0] == [Marker(5, 2**15 - 1, True, 2)]
        assert await coordinator.end(ID, last, commit=True, client_version=V2) == rotated
        await coordinator.add_partitions(ID, rotated, {P0}, client_version=V2)
        assert world.live() == world.replayed()

    run(scenario())
