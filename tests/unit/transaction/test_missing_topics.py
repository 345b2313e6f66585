"""Partitions of topics that are not in an image: a transaction does not lose the markers that it needs there."""

from __future__ import annotations

import asyncio

import pytest

from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.state_topic.topic import partition_for
from headwater.logtier.transaction.coordinator import RETRY_BACKOFF_MS
from headwater.logtier.transaction.metadata import TransactionState
from headwater.logtier.transaction.topic import TRANSACTION_TOPIC
from tests.unit.state_topic.surroundings import settle
from tests.unit.transaction.world import World, code_of
from tests.virtual_time import run_virtually

ID, V2 = "payments", 2
P0, NEWER = TopicPartition("t", 0), TopicPartition("newer", 0)


def test_a_partition_of_a_topic_that_is_newer_than_the_next_election_is_not_added() -> None:
    """The next coordinator may load the id by an image without the topic, and would skip the marker there.

    This one has the image already, and has not heard of the election.
    """

    async def main() -> None:
        world = World()
        coordinator = await world.start()
        producer = await coordinator.init_producer(ID, 60_000, None)
        writes = world.replicas.writes
        subscribers, world.metadata.subscribers = world.metadata.subscribers, []
        world.metadata.move(TRANSACTION_TOPIC, partition_for(ID, 2), leader=2, leader_epoch=9)
        world.metadata.add("newer")
        adding = coordinator.add_partitions(ID, producer, {NEWER}, client_version=V2)
        assert await code_of(adding) is ErrorCode.not_coordinator
        assert world.replicas.writes == writes
        world.metadata.subscribers = subscribers
        await coordinator.stop()

    run_virtually(main())


@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower])
def test_a_leader_that_does_not_know_the_topic_yet_gets_the_marker_later(code: ErrorCode) -> None:
    """Its image lacks the topic: that skips nothing."""

    async def main() -> None:
        world = World()
        coordinator = await world.start()
        producer = await coordinator.init_producer(ID, 60_000, None)
        await coordinator.add_partitions(ID, producer, {P0}, client_version=V2)
        world.metadata.move("t", 0, leader=2, leader_epoch=1)
        world.others.codes[P0] = code
        await coordinator.end(ID, producer, commit=True, client_version=V2)
        await settle()
        assert (len(world.others.asked), coordinator.describe(ID).state) == (1, TransactionState.PREPARE_COMMIT)
        world.others.codes.clear()
        await asyncio.sleep(2 * RETRY_BACKOFF_MS / 1000)
        await settle()
        assert (len(world.others.asked), coordinator.describe(ID).state) == (2, TransactionState.COMPLETE_COMMIT)
        await coordinator.stop()

    run_virtually(main())


def test_a_topic_made_anew_gets_the_marker_of_a_transaction_with_the_one_before() -> None:
    """There it ends nothing: the records of a transaction have no ids of topics, as in Kafka."""

    async def main() -> None:
        world = World()
        coordinator = await world.start()
        producer = await coordinator.init_producer(ID, 60_000, None)
        await coordinator.add_partitions(ID, producer, {P0}, client_version=V2)
        world.metadata.remove("t")
        world.metadata.add("t")
        await coordinator.end(ID, producer, commit=True, client_version=V2)
        await settle()
        assert (list(world.replicas.markers), coordinator.describe(ID).state) == (
            [P0],
            TransactionState.COMPLETE_COMMIT,
        )
        await coordinator.stop()

    run_virtually(main())
