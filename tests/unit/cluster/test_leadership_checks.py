"""Other replicas are asked whether they know a newer leader: whom, how often, and what their answers mean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import BrokerConnectionError
from headwater.logtier.cluster.leadership_checks import LIMIT_S, RETRY_S, LeadershipChecks
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.store import StoreUnavailableError
from headwater.logtier.metadata.topic_nodes import chunk_path, encode_chunk
from headwater.logtier.peers.peers import Purpose
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from tests.topic_images import topic_changes
from tests.virtual_time import run_virtually

KEY, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
FOLLOWS, OLDER = ErrorCode.not_leader_or_follower, ErrorCode.unknown_leader_epoch
NEWER, MISSING = ErrorCode.fenced_leader_epoch, ErrorCode.unknown_topic_or_partition


def log_of_nothing() -> Any:
    config = SimpleNamespace(min_insync_replicas=2)
    return SimpleNamespace(log_start_offset=0, log_end_offset=0, config=config, truncations=0)


class World:
    """Broker 1, which leads both partitions in epoch 5, and the answers of the others."""

    def __init__(self) -> None:
        self.partitions = {key: Partition(key, 1, log_of_nothing(), lag_ms_max=10_000) for key in (KEY, OTHER)}
        self.image = MetadataImage().apply(topic_changes("t", UUID(int=1), [(1, 2, 3, 4)] * 2))
        self.store(isr=(1, 2, 3))
        self.answers: dict[int, list[ErrorCode | Exception]] = {}
        self.asked: list[tuple[int, set[TopicPartition]]] = []
        self.hung: set[int] = set()
        self.stored: MetadataImage | None = None  # it cannot be reached
        self.reads = 0
        peers: Any = self
        store: Any = self
        self.checks = LeadershipChecks(1, peers, store, self.partition, lambda: self.image)

    def store(self, *, isr: tuple[int, ...], elr: tuple[int, ...] = (), leader: int = 1, epoch: int = 5) -> None:
        """The metadata have another state of the partitions."""
        topic = self.image.topics["t"]
        before = topic.partitions[0]
        state = replace(
            before, leader=leader, leader_epoch=epoch, partition_epoch=before.partition_epoch + 1, isr=isr, elr=elr
        )
        self.image = replace(self.image, topics={"t": replace(topic, partitions=(state, state))})
        for partition in self.partitions.values():
            partition.leadership(state, {1: 1, 2: 1, 3: 1, 4: 1}, 0)

    async def sync(self) -> None:
        self.reads += 1
        await asyncio.sleep(0.001)
        if self.stored is None:
            raise StoreUnavailableError("/", "away")

    async def get_many(self, paths: Sequence[str]) -> list[Any]:
        assert self.stored is not None
        chunks = {chunk_path("t", 0): encode_chunk(self.stored.topics["t"].partitions)}
        return [SimpleNamespace(data=chunks[path]) for path in paths]

    def partition(self, key: TopicPartition) -> Partition[Any]:
        return self.partitions[key]

    async def call(
        self, broker_id: int, purpose: Purpose, request: Request[Any], timeout_ms: int
    ) -> Mapping[TopicPartition, Any]:
        assert purpose is Purpose.LEADERSHIPS
        assert timeout_ms > 0
        keys = {key for key in (KEY, OTHER) if _asks_for(request, key)}
        self.asked.append((broker_id, keys))
        await asyncio.sleep(1_000 if broker_id in self.hung else 0.001)
        answers = self.answers.get(broker_id, [])
        answer = answers.pop(0) if len(answers) > 1 else (answers or [FOLLOWS])[0]
        if isinstance(answer, Exception):
            raise answer
        return {key: SimpleNamespace(error_code=int(answer)) for key in keys}


def _asks_for(request: Request[Any], key: TopicPartition) -> bool:
    """Partitions are the last thing of a topic in OffsetForLeaderEpoch 4: index, present and wanted epoch, 5 here."""
    return key.partition.to_bytes(4, "big") + (5).to_bytes(4, "big") * 2 in request.body


def checking(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    world = World()

    async def main() -> None:
        await scenario(world)
        await world.checks.aclose()

    run_virtually(main())
    return world


async def code_of(work: Coroutine[Any, Any, None]) -> ErrorCode:
    try:
        await work
    except KafkaError as error:
        return error.code
    return ErrorCode.none


def test_every_replica_is_asked_that_a_newer_leader_could_be_elected_from() -> None:
    async def scenario(world: World) -> None:
        world.store(isr=(1, 2), elr=(4,))
        await world.checks.check(KEY)

    assert sorted(checking(scenario).asked) == [(2, {KEY}), (4, {KEY})]


def test_a_leader_without_other_candidates_asks_nobody() -> None:
    async def scenario(world: World) -> None:
        world.store(isr=(1,))
        await world.checks.check(KEY)

    assert checking(scenario).asked == []


@pytest.mark.parametrize("answer", [FOLLOWS, OLDER])
def test_a_replica_that_knows_no_newer_epoch_confirms(answer: ErrorCode) -> None:
    async def scenario(world: World) -> None:
        world.answers = {2: [answer], 3: [answer]}
        await world.checks.check(KEY)

    assert sorted(checking(scenario).asked) == [(2, {KEY}), (3, {KEY})]


def test_one_that_knows_a_newer_leader_ends_the_check() -> None:
    async def scenario(world: World) -> None:
        world.answers = {2: [FOLLOWS], 3: [NEWER]}
        assert await code_of(world.checks.check(KEY)) is FOLLOWS

    checking(scenario)


@pytest.mark.parametrize("answer", [MISSING, ErrorCode.kafka_storage_error, BrokerConnectionError("away")])
def test_one_that_does_not_tell_is_asked_again_and_the_others_are_not(answer: ErrorCode | Exception) -> None:
    async def scenario(world: World) -> None:
        world.answers = {2: [FOLLOWS], 3: [answer, answer, FOLLOWS]}
        await world.checks.check(KEY)

    assert [broker_id for broker_id, _ in sorted(checking(scenario).asked)] == [2, 3, 3, 3]


def test_one_that_is_away_is_needed_until_it_has_left_the_isr() -> None:
    async def scenario(world: World) -> None:
        world.answers = {3: [BrokerConnectionError("away")]}
        check = asyncio.ensure_future(world.checks.check(KEY))
        await asyncio.sleep(RETRY_S * 5)
        assert not check.done()
        world.store(isr=(1, 2))
        await check

    checking(scenario)


def test_one_that_hangs_is_not_needed_when_it_has_left_the_isr() -> None:
    async def scenario(world: World) -> None:
        world.hung = {3}
        checks = [asyncio.ensure_future(world.checks.check(KEY)) for _ in range(2_000)]
        await asyncio.sleep(RETRY_S)
        world.store(isr=(1, 2))
        await asyncio.wait_for(asyncio.gather(*checks, world.checks.check(KEY)), 1.0)

    assert len(checking(scenario).asked) < 10, "they share their questions"


def test_a_member_that_was_proposed_for_the_isr_is_asked_too() -> None:
    async def scenario(world: World) -> None:
        world.store(isr=(1, 2))
        for broker_id in (2, 3):
            world.partitions[KEY].fetched(broker_id, fetch_offset=0, log_start_offset=0, broker_epoch=1, now_ms=1)
        assert world.partitions[KEY].maximal_isr == {1, 2, 3}
        await world.checks.check(KEY)

    assert sorted(checking(scenario).asked) == [(2, {KEY}), (3, {KEY})]


def test_while_one_is_away_the_metadata_store_confirms() -> None:
    async def scenario(world: World) -> None:
        world.answers = {3: [BrokerConnectionError("away")]}
        world.stored = world.image
        await asyncio.gather(*(world.checks.check(KEY) for _ in range(100)))

    assert checking(scenario).reads == 1


def test_while_one_is_away_the_metadata_store_names_another_leader() -> None:
    async def scenario(world: World) -> None:
        world.answers = {3: [BrokerConnectionError("away")]}
        known, before = world.image, world.partitions
        world.partitions = {key: Partition(key, 1, log_of_nothing(), lag_ms_max=1) for key in before}
        world.store(isr=(2, 3), leader=2, epoch=6)
        world.stored, world.image, world.partitions = world.image, known, before
        assert await code_of(world.checks.check(KEY)) is FOLLOWS

    checking(scenario)


def test_a_check_has_a_time_limit() -> None:
    async def scenario(world: World) -> None:
        world.answers = {3: [BrokerConnectionError("away")]}
        begun_s = asyncio.get_running_loop().time()
        assert await code_of(world.checks.check(KEY)) is ErrorCode.request_timed_out
        assert asyncio.get_running_loop().time() - begun_s == pytest.approx(LIMIT_S, abs=0.1)

    checking(scenario)


def test_a_leader_that_learns_meanwhile_of_another_is_none() -> None:
    async def scenario(world: World) -> None:
        world.answers = {3: [BrokerConnectionError("away")]}
        check = asyncio.ensure_future(world.checks.check(KEY))
        await asyncio.sleep(RETRY_S * 2)
        world.store(isr=(2, 3), leader=2, epoch=6)
        assert await code_of(_of(check)) is FOLLOWS

    checking(scenario)


async def _of(check: asyncio.Future[None]) -> None:
    await check


def test_the_same_leader_in_a_newer_epoch_is_another_one() -> None:
    async def scenario(world: World) -> None:
        world.answers = {3: [BrokerConnectionError("away")]}
        check = asyncio.ensure_future(world.checks.check(KEY))
        await asyncio.sleep(RETRY_S * 2)
        world.store(isr=(1, 3), epoch=7)
        assert await code_of(_of(check)) is not ErrorCode.none

    checking(scenario)


def test_checks_of_one_moment_share_their_requests_and_a_later_one_does_not() -> None:
    """An answer to a question of before proves nothing for a request that came after it was sent."""

    async def scenario(world: World) -> None:
        first = [asyncio.ensure_future(world.checks.check(key)) for key in (KEY, OTHER, KEY)]
        await asyncio.sleep(0.0005)
        later = asyncio.ensure_future(world.checks.check(KEY))
        await asyncio.gather(*first, later)

    assert sorted(checking(scenario).asked, key=_order) == [
        (2, {KEY}),
        (2, {KEY, OTHER}),
        (3, {KEY}),
        (3, {KEY, OTHER}),
    ]


def _order(asked: tuple[int, set[TopicPartition]]) -> tuple[int, int]:
    return asked[0], len(asked[1])
