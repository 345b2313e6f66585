"""The rounds in which a broker requests the ends of its groups' partitions from their leaders."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import BrokerConnectionError
from headwater.logtier.cluster import remote_end_offsets
from headwater.logtier.cluster.group_ends import INTERVAL_S, TIMEOUT_MS, GroupEnds
from headwater.logtier.cluster.remote_end_offsets import VALID_MS
from headwater.logtier.group.persistence.offsets import CommittedOffset, GroupOffsets
from headwater.logtier.group.registry import AnyGroup
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage
from headwater.logtier.peers.leader_requests import ListedOffset, list_offsets_request
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.unit.replication.handled_requests import handled
from tests.unit.replication.replicated_node import P0, TOPIC, TOPIC_ID, ReplicatedNode
from tests.virtual_time import LoopClock, run_virtually

Answers = dict[TopicPartition, ListedOffset]


def image_of(*leaders: int, epoch: int = 0, topic_id: uuid.UUID = TOPIC_ID) -> MetadataImage:
    states = tuple(PartitionImage(leader, epoch, epoch, (1, 2, 3), (1, 2, 3)) for leader in leaders)
    return MetadataImage(topics={TOPIC: TopicImage(TOPIC, topic_id, states)})


class FakeLeaders:
    """Other brokers: each answers every request with its ends, unless it is away, or waits until it is let go."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, Request[Any]]] = []
        self.ends: dict[int, Answers] = {2: {}, 3: {}}
        self.away: set[int] = set()
        self.held: dict[int, asyncio.Event] = {}
        self.calls: set[asyncio.Task[Any]] = set()

    def send(self, broker_id: int, request: Request[Any], timeout_ms: int) -> asyncio.Future[Any]:
        self.requests.append((broker_id, request))
        call = asyncio.ensure_future(self._answer(broker_id))
        self.calls.add(call)
        call.add_done_callback(self.calls.discard)
        return call

    async def _answer(self, broker_id: int) -> Answers:
        if broker_id in self.held:
            await self.held[broker_id].wait()
        if broker_id in self.away:
            raise BrokerConnectionError(f"broker {broker_id} is away")
        return dict(self.ends[broker_id])

    def asked(self) -> list[int]:
        return [broker_id for broker_id, _ in self.requests]


class FakeGroups:
    """What the coordinator has: a group of each name, and partitions of which it has committed offsets."""

    def __init__(self, partitions: Mapping[str, tuple[int, ...]]) -> None:
        self.partitions = dict(partitions)
        self.is_loading = False
        self.moved: set[str] = set()

    def loaded_groups(self) -> list[AnyGroup]:
        if self.is_loading:
            return []
        return [cast("Any", SimpleNamespace(group_id=name)) for name in self.partitions]

    def committed(self, group_id: str) -> GroupOffsets:
        if group_id in self.moved:
            raise KafkaError(ErrorCode.not_coordinator, "moved")
        offsets = GroupOffsets()
        for index in self.partitions[group_id]:
            offsets.put(TopicPartition(TOPIC, index), CommittedOffset(3), 0)
        return offsets


class Broker1:
    """The broker under test, in virtual time."""

    def __init__(self, image: MetadataImage, partitions: Mapping[str, tuple[int, ...]] | None = None) -> None:
        self.metadata = SimpleNamespace(image=image)
        self.leaders = FakeLeaders()
        self.groups = FakeGroups({"readers": (0, 1)} if partitions is None else partitions)
        send: Any = self.leaders.send
        self.ends = GroupEnds(1, send, self.groups, cast("Any", self.metadata), LoopClock())

    def known(self, topic_id: uuid.UUID = TOPIC_ID) -> list[int | None]:
        count = len(self.metadata.image.topics[TOPIC].partitions)
        return [self.ends.end_offset(TopicPartition(TOPIC, index), topic_id) for index in range(count)]

    def has(self, broker_id: int, *ends: tuple[int, int], code: int = 0) -> None:
        """What a leader answers: partitions and their ends."""
        self.leaders.ends[broker_id] = {
            TopicPartition(TOPIC, index): ListedOffset(code, -1 if code else end, 0) for index, end in ends
        }


def virtually(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtually(scenario())

    run.__name__ = scenario.__name__
    return run


@virtually
async def test_every_leader_receives_one_request_and_its_answer_is_known() -> None:
    broker = Broker1(image_of(2, 3, 2, 1, NO_BROKER), {"readers": (0, 1, 3, 4), "writers": (0, 2)})
    broker.has(2, (0, 10), (2, 12))
    broker.has(3, (1, 11))
    await broker.ends.request()
    assert sorted(broker.leaders.asked()) == [2, 3]
    assert broker.known() == [10, 11, 12, None, None]
    sent = dict(broker.leaders.requests)[3]
    wanted = list_offsets_request(-1, {(TOPIC, 1): (0, -1)}, timeout_ms=TIMEOUT_MS)
    assert (sent.api_key, sent.api_version, sent.body) == (2, 10, wanted.body)


@virtually
async def test_a_round_follows_every_ten_seconds() -> None:
    broker = Broker1(image_of(2, 2))
    broker.has(2, (0, 10), (1, 10))
    broker.ends.start()
    await asyncio.sleep(0.1)
    assert broker.known() == [10, 10]
    broker.has(2, (0, 20), (1, 21))
    await asyncio.sleep(INTERVAL_S - 0.2)
    assert broker.known() == [10, 10]
    await asyncio.sleep(0.2)
    assert broker.known() == [20, 21]
    assert broker.leaders.asked() == [2, 2]
    await broker.ends.aclose()
    await asyncio.sleep(3 * INTERVAL_S)
    assert broker.leaders.asked() == [2, 2]


@virtually
async def test_a_broker_without_such_groups_asks_nobody() -> None:
    broker = Broker1(image_of(2, 3), {})
    broker.ends.start()
    await asyncio.sleep(3 * INTERVAL_S)
    await broker.ends.aclose()
    assert broker.leaders.asked() == []


@virtually
async def test_the_ends_of_a_leader_that_is_away_count_for_a_minute_and_those_of_others_go_on() -> None:
    broker = Broker1(image_of(2, 3))
    broker.has(2, (0, 10))
    broker.has(3, (1, 11))
    broker.ends.start()
    await asyncio.sleep(0.1)
    broker.leaders.away.add(2)
    broker.has(3, (1, 15))
    await asyncio.sleep(VALID_MS / 1000 - 1)
    assert broker.known() == [10, 15]
    await asyncio.sleep(2)
    assert broker.known() == [None, 15]
    broker.leaders.away.clear()
    await asyncio.sleep(INTERVAL_S)
    assert broker.known() == [10, 15]
    await broker.ends.aclose()


@virtually
async def test_a_slow_leader_does_not_delay_the_ends_of_another() -> None:
    broker = Broker1(image_of(2, 3))
    broker.has(2, (0, 10))
    broker.has(3, (1, 11))
    broker.leaders.held[2] = asyncio.Event()
    asking = asyncio.create_task(broker.ends.request())
    await asyncio.sleep(1)
    assert broker.known() == [None, 11]
    broker.leaders.held[2].set()
    await asking
    assert broker.known() == [10, 11]


@virtually
async def test_after_a_failure_the_leaders_other_requests_wait_for_the_next_round() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_end_offsets, "PARTITIONS_PER_REQUEST_MAX", 1)
        broker = Broker1(image_of(2, 2))
        broker.has(2, (0, 10), (1, 11))
        await broker.ends.request()
        assert (broker.leaders.asked(), broker.known()) == ([2, 2], [10, 11])
        broker.leaders.away.add(2)
        await broker.ends.request()
        assert broker.leaders.asked() == [2, 2, 2]


@virtually
async def test_another_leader_is_asked_in_the_next_round() -> None:
    broker = Broker1(image_of(2, 2))
    broker.has(2, (0, 10), (1, 11))
    await broker.ends.request()
    broker.metadata.image = image_of(3, 2, epoch=1)
    broker.has(2, (1, 12))
    broker.has(3, (0, 9))
    await broker.ends.request()
    assert broker.known() == [9, 12]


@virtually
async def test_an_answer_to_a_question_in_an_earlier_leader_epoch_is_dropped() -> None:
    broker = Broker1(image_of(2, 2))
    broker.has(2, (0, 10), (1, 11))
    broker.leaders.held[2] = asyncio.Event()
    asking = asyncio.create_task(broker.ends.request())
    await asyncio.sleep(1)
    [_, second] = image_of(2, 2).topics[TOPIC].partitions
    broker.metadata.image = image_of(3, 2, epoch=1)
    moved = broker.metadata.image.topics[TOPIC]
    topic = replace(moved, partitions=(moved.partitions[0], second))
    broker.metadata.image = MetadataImage(topics={TOPIC: topic})
    broker.leaders.held[2].set()
    await asking
    assert broker.known() == [None, 11]


@virtually
async def test_the_ends_of_a_deleted_topic_are_not_those_of_another_with_its_name() -> None:
    broker = Broker1(image_of(2, 2))
    broker.has(2, (0, 10), (1, 11))
    await broker.ends.request()
    other_id = uuid.UUID(int=77)
    broker.metadata.image = image_of(2, 2, topic_id=other_id)
    assert broker.known(other_id) == [None, None]
    broker.has(2, (0, 1), (1, 2))
    await broker.ends.request()
    assert broker.known(other_id) == [1, 2]


@virtually
async def test_while_groups_are_loaded_or_moved_the_last_answers_count() -> None:
    broker = Broker1(image_of(2, 2))
    broker.has(2, (0, 10), (1, 11))
    await broker.ends.request()
    broker.groups.is_loading = True
    await broker.ends.request()
    broker.groups.is_loading = False
    broker.groups.moved.add("readers")
    await broker.ends.request()
    assert (broker.leaders.asked(), broker.known()) == ([2], [10, 11])


def test_a_refusal_is_logged_once_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker = Broker1(image_of(2, 2))
        broker.has(2, (0, 0), (1, 0), code=ErrorCode.topic_authorization_failed)
        for _ in range(3):
            await broker.ends.request()
        assert broker.known() == [None, None]

    with caplog.at_level(logging.INFO):
        run_virtually(scenario())
    [record] = [each for each in caplog.records if "group_ends" in each.name]
    line = record.getMessage()
    assert record.levelname == "WARNING"
    assert "\n" not in line
    for part in ("broker 2", "2 partitions", "flights-0", "super.users"):
        assert part in line


def test_a_real_leader_answers_its_high_watermark_and_not_its_log_end(tmp_path: Any) -> None:
    leader = ReplicatedNode(tmp_path)
    leader.start()
    try:
        leader.append(count=5)
        leader.fetched(2, 3)
        leader.fetched(3, 5)
        partition = leader.partition(P0)
        assert (partition.high_watermark, partition.log.log_end_offset) == (3, 5)

        async def scenario() -> None:
            def send(broker_id: int, request: Request[Any], timeout_ms: int) -> asyncio.Future[Any]:
                assert broker_id == 1
                return asyncio.ensure_future(handled(leader.services, request))

            metadata: Any = SimpleNamespace(image=leader.image)
            ends = GroupEnds(2, cast("Any", send), FakeGroups({"readers": (0, 1)}), metadata, LoopClock())
            await ends.request()
            assert [ends.end_offset(TopicPartition(TOPIC, index), TOPIC_ID) for index in (0, 1)] == [3, 0]

        run_virtually(scenario())
    finally:
        leader.kill()
