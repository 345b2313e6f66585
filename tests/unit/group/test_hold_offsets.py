"""Which broker is asked for the offsets of groups that hold back retention, and which answers count."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

import pytest

from headwater.logtier.group import hold_offsets
from headwater.logtier.group.hold_offsets import HoldOffsets
from headwater.logtier.group.persistence.offsets import CommittedOffset, GroupOffsets
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.state_topic.topic import partition_for
from tests.virtual_time import run_virtually

FLIGHTS, OTHER_ID = uuid.UUID(int=1), uuid.UUID(int=2)
P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
Found = dict[str, dict[TopicPartition, int]]
Wanted = Mapping[str, Mapping[TopicPartition, UUID]]


def group_of(partition: int) -> str:
    """A group of a partition of `__consumer_offsets`, which has three."""
    return next(name for number in range(100) if partition_for(name := f"group-{number}", 3) == partition)


def image_of(*leaders: int) -> MetadataImage:
    states = tuple(PartitionImage(leader, 0, 0, (1, 2, 3), (1, 2, 3)) for leader in leaders)
    return MetadataImage(topics={OFFSETS_TOPIC: TopicImage(OFFSETS_TOPIC, uuid.UUID(int=9), states)})


class FakeCoordinator:
    """The groups of this broker."""

    def __init__(self) -> None:
        self.offsets: dict[str, GroupOffsets] = {}
        self.errors: dict[str, KafkaError] = {}

    def commit(self, group_id: str, key: TopicPartition, offset: int, topic_id: UUID | None = FLIGHTS) -> None:
        committed = CommittedOffset(offset, topic_id=topic_id)
        self.offsets.setdefault(group_id, GroupOffsets()).put(key, committed, offset)

    def loaded_partition(self, group_id: str) -> TopicPartition:
        if group_id in self.errors:
            raise self.errors[group_id]
        return TopicPartition(OFFSETS_TOPIC, partition_for(group_id, 3))

    def committed(self, group_id: str) -> GroupOffsets:
        return self.offsets.get(group_id) or GroupOffsets()


class Broker1:
    def __init__(self, *leaders: int) -> None:
        self.image = image_of(*leaders)
        self.groups = FakeCoordinator()
        self.answers: dict[int, Found] = {}
        self.silent: set[int] = set()
        self.faulty: set[int] = set()
        self.asked: list[tuple[int, list[str]]] = []

    async def ask(self, broker_id: int, wanted: Wanted, offsets: Found) -> None:
        """A silent broker falls silent after its answer; its other answers do not come."""
        self.asked.append((broker_id, sorted(wanted)))
        if broker_id in self.faulty:
            raise RuntimeError("a fault")
        offsets |= self.answers.get(broker_id, {})
        if broker_id in self.silent:
            await asyncio.Event().wait()

    async def committed(self, *groups: str, check: Callable[[TopicPartition], Awaitable[None]] | None = None) -> Found:
        offsets = HoldOffsets(1, self.groups, lambda: self.image, check, self.ask)
        return await offsets.committed({group_id: {P0: FLIGHTS, P1: FLIGHTS} for group_id in groups})


def test_each_coordinator_is_asked_once_and_this_broker_not_over_the_network() -> None:
    async def scenario() -> None:
        broker = Broker1(1, 2, 2)
        own, other, third = group_of(0), group_of(1), group_of(2)
        broker.groups.commit(own, P0, 5)
        broker.answers = {2: {other: {P0: 7}, third: {P1: 8}}}
        assert await broker.committed(own, other, third) == {own: {P0: 5}, other: {P0: 7}, third: {P1: 8}}
        assert broker.asked == [(2, sorted([other, third]))]

    run_virtually(scenario())


def test_an_offset_of_another_topic_id_does_not_count() -> None:
    async def scenario() -> None:
        broker = Broker1(1, 1, 1)
        broker.groups.commit("g", P0, 5, OTHER_ID)
        broker.groups.commit("g", P1, 6, None)
        assert await broker.committed("g") == {"g": {P1: 6}}, "earlier releases wrote no topic ids"

    run_virtually(scenario())


def test_a_group_that_is_loading_or_led_by_nobody_is_unknown_and_hides_no_other() -> None:
    async def scenario() -> None:
        broker = Broker1(1, 1, NO_BROKER)
        known, loading, leaderless = group_of(0), group_of(1), group_of(2)
        broker.groups.commit(known, P0, 5)
        broker.groups.errors[loading] = KafkaError(ErrorCode.coordinator_load_in_progress, "loading")
        assert await broker.committed(known, loading, leaderless) == {known: {P0: 5}}
        broker.image = MetadataImage()
        assert await broker.committed(known) == {}, "there is no topic of offsets"

    run_virtually(scenario())


def test_offsets_of_a_coordinator_that_others_do_not_confirm_do_not_count() -> None:
    async def check(topic_partition: TopicPartition) -> None:
        if topic_partition.partition == 1:
            raise KafkaError(ErrorCode.not_leader_or_follower, "another broker leads")

    async def scenario() -> None:
        broker = Broker1(1, 1, 1)
        confirmed, deposed = group_of(0), group_of(1)
        broker.groups.commit(confirmed, P0, 5)
        broker.groups.commit(deposed, P0, 5)
        assert await broker.committed(confirmed, deposed, check=check) == {confirmed: {P0: 5}}

    run_virtually(scenario())


def test_a_coordinator_that_does_not_answer_delays_no_other_beyond_the_limit() -> None:
    async def scenario() -> None:
        broker = Broker1(1, 2, 3)
        broker.silent = {2}
        broker.answers = {3: {group_of(2): {P0: 4}}}
        begun_s = asyncio.get_running_loop().time()
        assert await broker.committed(group_of(1), group_of(2)) == {group_of(2): {P0: 4}}
        assert asyncio.get_running_loop().time() - begun_s == hold_offsets.LIMIT_S

    run_virtually(scenario())


def test_answers_that_came_before_the_limit_count() -> None:
    async def check(topic_partition: TopicPartition) -> None:
        if topic_partition.partition == 1:
            await asyncio.Event().wait()

    async def scenario() -> None:
        broker = Broker1(1, 1, 2)
        confirmed, waiting, remote = group_of(0), group_of(1), group_of(2)
        broker.groups.commit(confirmed, P0, 5)
        broker.groups.commit(waiting, P0, 6)
        broker.silent = {2}
        broker.answers = {2: {remote: {P0: 4}}}
        expected = {confirmed: {P0: 5}, remote: {P0: 4}}
        assert await broker.committed(confirmed, waiting, remote, check=check) == expected

    run_virtually(scenario())


def test_a_fault_in_asking_one_coordinator_is_logged_and_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker = Broker1(1, 2, 3)
        broker.groups.commit(group_of(0), P0, 5)
        broker.faulty = {2}
        broker.answers = {3: {group_of(2): {P0: 4}}}
        found = await broker.committed(group_of(0), group_of(1), group_of(2))
        assert found == {group_of(0): {P0: 5}, group_of(2): {P0: 4}}

    run_virtually(scenario())
    [logged] = caplog.records
    assert "asking broker 2 for the offsets of groups that hold records failed" in logged.getMessage()
    assert logged.exc_info is not None
