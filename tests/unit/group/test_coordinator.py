"""The coordinator as a whole, over an in-memory log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.logtier.group.events import GroupState, LeavingMember
from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.group.persistence.records import GroupKey, parse_key
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import decode_records
from headwater.logtier.state_topic.topic import partition_for
from headwater.logtier.state_topic.turns import STEPS_PER_TURN
from tests.example_counts import examples

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

MakeWorld = Callable[..., Any]
Settled = Callable[[], Awaitable[None]]


async def begin(make_world: MakeWorld, **properties: object) -> Any:
    """A started coordinator, with the topic `t` and `__consumer_offsets`."""
    world = make_world(properties)
    await world.groups.start()
    world.metadata.add("t")
    await world.groups.find("g")
    return world


async def commit(world: Any, group_id: str, commits: Mapping[TopicPartition, int], **member: Any) -> None:
    arguments = {"member_id": "", "group_instance_id": None, "generation_id": -1, **member}
    await world.groups.commit_offsets(
        group_id,
        commits={key: CommittedOffset(offset, 3, "m", world.clock.ms) for key, offset in commits.items()},
        **arguments,
    )


def committed(world: Any, group_id: str) -> dict[TopicPartition, int]:
    return {key: value.offset for key, value in world.groups.committed(group_id).items()}


async def error_of(work: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await work
    return caught.value.code


def test_the_first_look_for_a_coordinator_creates_the_offsets_topic(make_world: MakeWorld) -> None:
    async def scenario() -> None:
        world = make_world()
        await world.groups.start()
        broker = await world.groups.find("g")
        assert (broker.id, broker.host, broker.port) == (1, "here", 9092)
        await world.groups.find("h")
        [topic] = world.controller.created
        assert (topic.name, topic.num_partitions) == (OFFSETS_TOPIC, 4)
        assert topic.configs["cleanup.policy"] == "compact"
        await commit(world, "g", {})
        await world.groups.stop()

    asyncio.run(scenario())


def test_a_topic_that_cannot_be_created_is_told_to_the_client(make_world: MakeWorld) -> None:
    async def scenario() -> None:
        world = make_world()
        await world.groups.start()
        world.controller.error = KafkaError(ErrorCode.invalid_replication_factor, "3 replicas, 1 broker")
        assert await error_of(world.groups.find("g")) is ErrorCode.coordinator_not_available
        assert (await world.join("g")).error is ErrorCode.not_coordinator
        await world.groups.stop()

    asyncio.run(scenario())


def test_a_commit_is_answered_only_after_it_is_in_the_log(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        world.replicas.gate = asyncio.Event()
        task = asyncio.ensure_future(commit(world, "g", {T0: 5}))
        await settled()
        assert not task.done()
        assert committed(world, "g") == {}
        world.replicas.gate.set()
        await task
        assert committed(world, "g") == {T0: 5}
        await world.groups.stop()

    asyncio.run(scenario())


def test_offsets_survive_a_restart_with_metadata_and_leader_epoch(make_world: MakeWorld) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        await commit(world, "g", {T0: 5, T1: 6})
        await commit(world, "g", {T0: 7})
        before = dict(world.groups.committed("g").items())
        await world.restart()
        assert dict(world.groups.committed("g").items()) == before
        assert committed(world, "g") == {T0: 7, T1: 6}
        assert before[T0].metadata == "m"
        assert before[T0].leader_epoch == 3
        await world.groups.stop()

    asyncio.run(scenario())


def test_a_failed_write_is_not_taken_over(make_world: MakeWorld) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        world.replicas.error = KafkaError(ErrorCode.not_leader_or_follower)
        assert await error_of(commit(world, "g", {T0: 5})) is ErrorCode.not_coordinator
        world.replicas.error = KafkaError(ErrorCode.message_too_large)
        assert await error_of(commit(world, "g", {T0: 5})) is ErrorCode.invalid_commit_offset_size
        world.replicas.error = OSError("No space left on device")
        assert await error_of(commit(world, "g", {T0: 5})) is ErrorCode.not_coordinator
        assert committed(world, "g") == {}
        await world.groups.stop()

    asyncio.run(scenario())


def test_members_join_sync_and_go_on_after_a_restart(make_world: MakeWorld) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        joined = await world.join("g")
        assert joined.member_id.startswith("client-")
        assert (await world.sync("g", joined)).assignment == b"everything"
        await commit(world, "g", {T0: 1}, member_id=joined.member_id, generation_id=1)
        assert await error_of(commit(world, "g", {T0: 2})) is ErrorCode.unknown_member_id
        assert await error_of(commit(world, "g", {T0: 2}, member_id=joined.member_id, generation_id=0)) is (
            ErrorCode.illegal_generation
        )
        await world.restart()
        assert world.groups.heartbeat("g", joined.member_id, None, 1) is ErrorCode.none
        assert (await world.sync("g", joined)).assignment == b"everything"
        assert await world.groups.leave("g", [LeavingMember(joined.member_id), LeavingMember("x")]) == [
            ErrorCode.none,
            ErrorCode.unknown_member_id,
        ]
        await world.restart()
        assert world.groups.group("g").state is GroupState.EMPTY
        assert world.groups.group("g").generation_id == 2
        assert committed(world, "g") == {T0: 1}
        await world.groups.stop()

    asyncio.run(scenario())


def test_every_rebalance_is_explained_in_one_line(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        with caplog.at_level(logging.INFO, "headwater.logtier.group"):
            joined = await world.join("g", reason="first poll")
            await world.sync("g", joined)
            await world.groups.leave("g", [LeavingMember(joined.member_id, reason="closed")])
        await world.groups.stop()
        first, second = [record.getMessage() for record in caplog.records]
        assert "generation 1 with 1 member" in first
        assert f"member {joined.member_id} joined from /10.0.0.1 (first poll)" in first
        assert second.endswith(f"member {joined.member_id} left (closed)")

    asyncio.run(scenario())


def test_silent_members_time_out_by_the_timer(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        joined = await world.join("g", session_timeout_ms=1)
        await world.sync("g", joined)
        world.clock.ms += 10
        while world.groups.group("g").state is not GroupState.EMPTY:  # noqa: ASYNC110 (the timer is what is tested)
            await asyncio.sleep(0.001)
        assert world.groups.heartbeat("g", joined.member_id, None, 1) is ErrorCode.unknown_member_id
        await world.groups.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"session_timeout_ms": 0}, ErrorCode.invalid_session_timeout),
        ({"session_timeout_ms": 2**31 - 1}, ErrorCode.invalid_session_timeout),
        ({"member_id": "stranger"}, ErrorCode.unknown_member_id),
        ({"protocols": []}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": ""}, ErrorCode.inconsistent_group_protocol),
        ({"client_id": "c" * 40_000}, ErrorCode.invalid_request),
    ],
)
def test_a_bad_join_is_refused_and_leaves_no_group(
    make_world: MakeWorld, changed: dict[str, Any], error: ErrorCode
) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        assert (await world.join("g", **changed)).error is error
        assert world.groups.groups() == []
        await world.groups.stop()

    asyncio.run(scenario())


def test_an_empty_group_id_is_invalid_for_members(make_world: MakeWorld) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        joined = await world.join("")
        assert joined.error is ErrorCode.invalid_group_id
        assert (await world.sync("", joined)).error is ErrorCode.invalid_group_id
        assert world.groups.heartbeat("", "m", None, 1) is ErrorCode.invalid_group_id
        with pytest.raises(KafkaError, match="invalid_group_id"):
            await world.groups.leave("", [])
        await world.groups.stop()

    asyncio.run(scenario())


def test_requests_to_groups_that_do_not_exist(make_world: MakeWorld) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        joined = await world.join("other")
        assert (await world.sync("g", joined)).error is ErrorCode.unknown_member_id
        assert world.groups.heartbeat("g", "m", None, 1) is ErrorCode.unknown_member_id
        assert await world.groups.leave("g", [LeavingMember("m")]) == [ErrorCode.unknown_member_id]
        assert await error_of(commit(world, "g", {T0: 1}, generation_id=4)) is ErrorCode.group_id_not_found
        old = commit(world, "g", {T0: 1}, generation_id=4, api_version=8)
        assert await error_of(old) is ErrorCode.illegal_generation
        assert await error_of(world.groups.delete_group("g")) is ErrorCode.group_id_not_found
        assert await error_of(world.groups.delete_offsets("g", [T0])) is ErrorCode.group_id_not_found
        assert committed(world, "g") == {}
        assert world.groups.group("g") is None
        await world.groups.stop()

    asyncio.run(scenario())


def test_while_the_log_is_loaded_clients_are_told_to_wait(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        for offset in range(STEPS_PER_TURN):
            await commit(world, "g", {T0: offset})
        world.groups = world.new_coordinator()
        await world.groups.start()
        await asyncio.sleep(0)
        assert (await world.join("g")).error is ErrorCode.coordinator_load_in_progress
        assert world.groups.heartbeat("g", "m", None, 1) is ErrorCode.none
        with pytest.raises(KafkaError, match="coordinator_load_in_progress"):
            world.groups.groups()
        await settled()
        assert committed(world, "g") == {T0: STEPS_PER_TURN - 1}
        await world.groups.stop()

    asyncio.run(scenario())


def test_a_damaged_log_makes_its_groups_unavailable_and_no_others(make_world: MakeWorld) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        await commit(world, "g", {T0: 1})
        other = next(name for name in "abcdef" if partition_for(name, 4) != partition_for("g", 4))
        await commit(world, other, {T0: 2})
        world.replicas.log(TopicPartition(OFFSETS_TOPIC, partition_for("g", 4))).stored.append(b"damaged")
        await world.restart()
        assert (await world.join("g")).error is ErrorCode.coordinator_not_available
        assert committed(world, other) == {T0: 2}
        await world.groups.stop()

    asyncio.run(scenario())


def test_a_deleted_group_is_gone_for_good(make_world: MakeWorld) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        joined = await world.join("g")
        await world.sync("g", joined)
        await commit(world, "g", {T0: 1}, member_id=joined.member_id, generation_id=1)
        assert await error_of(world.groups.delete_group("g")) is ErrorCode.non_empty_group
        await world.groups.leave("g", [LeavingMember(joined.member_id)])
        await world.groups.delete_group("g")
        for _ in range(2):
            assert world.groups.groups() == []
            assert committed(world, "g") == {}
            await world.restart()
        await world.groups.stop()

    asyncio.run(scenario())


def test_offsets_of_topics_in_use_are_not_deleted(make_world: MakeWorld) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        joined = await world.join("g")
        await world.sync("g", joined)
        other = TopicPartition("u", 0)
        await commit(world, "g", {T0: 1, other: 1}, member_id=joined.member_id, generation_id=1)
        assert await world.groups.delete_offsets("g", [T0, other]) == {
            T0: ErrorCode.group_subscribed_to_topic,
            other: ErrorCode.none,
        }
        assert committed(world, "g") == {T0: 1}
        await world.groups.leave("g", [LeavingMember(joined.member_id)])
        await world.groups.delete_offsets("g", [T0])
        assert committed(world, "g") == {}
        await world.groups.stop()

    asyncio.run(scenario())


def test_offsets_expire_and_the_group_with_them(make_world: MakeWorld) -> None:
    async def scenario() -> None:
        world = await begin(make_world, **{"offsets.retention.minutes": 1})
        await commit(world, "g", {T0: 1})
        world.clock.ms += 59_999
        await world.groups.expire()
        assert committed(world, "g") == {T0: 1}
        world.clock.ms += 1
        await world.groups.expire()
        for _ in range(2):
            assert world.groups.groups() == []
            await world.restart()
        await world.groups.stop()

    asyncio.run(scenario())


def test_offsets_of_a_deleted_topic_do_not_become_those_of_a_new_one(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        topic_id = world.metadata.image.topic("t").topic_id
        key = {"member_id": "", "group_instance_id": None, "generation_id": -1}
        await world.groups.commit_offsets("g", commits={T0: CommittedOffset(5, topic_id=topic_id)}, **key)
        world.metadata.remove("t")
        world.metadata.add("t")
        topic_id = world.metadata.image.topic("t").topic_id
        await world.groups.commit_offsets("g", commits={T1: CommittedOffset(1, topic_id=topic_id)}, **key)
        await settled()
        assert committed(world, "g") == {T1: 1}
        # The same after a crash between the deletion and the tombstones.
        world.groups._log.forget_all()
        world.metadata.subscribers.clear()
        world.metadata.remove("t")
        world.metadata.add("t")
        await world.restart()
        assert committed(world, "g") == {}
        await world.groups.stop()

    asyncio.run(scenario())


def test_when_the_offsets_topic_is_deleted_members_have_to_look_again(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        await world.join("g")
        other = asyncio.ensure_future(world.join("g"))
        await settled()
        world.metadata.remove(OFFSETS_TOPIC)
        assert (await other).error is ErrorCode.not_coordinator
        world.replicas.logs.clear()
        await world.groups.find("g")
        assert (await world.join("g")).error is ErrorCode.none
        await world.groups.stop()

    asyncio.run(scenario())


def test_stop_answers_those_who_wait(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        first = await world.join("g", requires_known_member_id=False)
        second = asyncio.ensure_future(world.join("g", requires_known_member_id=False))
        await settled()
        await world.groups.stop()
        assert (await second).error is ErrorCode.coordinator_not_available
        assert world.groups.heartbeat("g", first.member_id, None, 1) is ErrorCode.coordinator_not_available

    asyncio.run(scenario())


def test_a_client_that_goes_away_while_it_waits_disturbs_nobody(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        first = await world.join("g", requires_known_member_id=False)
        second = asyncio.ensure_future(world.join("g", requires_known_member_id=False))
        await settled()
        second.cancel()
        await settled()
        again = await world.join("g", member_id=first.member_id)
        assert again.error is ErrorCode.none
        assert again.generation_id == 2
        await world.groups.stop()

    asyncio.run(scenario())


operations = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from("ab"), st.sampled_from([T0, T1]), st.integers(0, 50)),
        st.tuples(st.just("join"), st.sampled_from("ab"), st.integers(0, 2)),
        st.tuples(st.just("sync"), st.sampled_from("ab")),
        st.tuples(st.just("leave"), st.sampled_from("ab"), st.integers(0, 2)),
        st.tuples(st.just("delete"), st.sampled_from("ab")),
        st.tuples(st.just("forget"), st.sampled_from("ab"), st.sampled_from([T0, T1])),
        st.tuples(st.just("time"), st.integers(1, 40)),
    ),
    max_size=30,
)


class Operator:
    """Does random things to groups as their clients would, errors included."""

    def __init__(self, world: Any, settled: Settled) -> None:
        self.world, self.settled = world, settled
        self.joined: dict[tuple[str, int], Any] = {}
        self.waiting: list[asyncio.Task[None]] = []

    async def do(self, name: str, *arguments: Any) -> None:
        with contextlib.suppress(KafkaError):
            await getattr(self, name)(*arguments)
        await self.settled()

    async def commit(self, group_id: str, key: TopicPartition, offset: int) -> None:
        group = self.world.groups.group(group_id)
        member = next(iter(group.members), None) if group is not None else None
        if member is None:
            await commit(self.world, group_id, {key: offset})
        else:
            await commit(
                self.world, group_id, {key: offset}, member_id=member.member_id, generation_id=group.generation_id
            )

    async def join(self, group_id: str, number: int) -> None:
        async def wait() -> None:
            known = self.joined.get((group_id, number))
            result = await self.world.join(group_id, member_id="" if known is None else known.member_id)
            if result.error is ErrorCode.none:
                self.joined[group_id, number] = result
            else:
                self.joined.pop((group_id, number), None)

        self.waiting.append(asyncio.ensure_future(wait()))

    async def sync(self, group_id: str) -> None:
        for (name, _), joined in list(self.joined.items()):
            if name == group_id:
                self.waiting.append(asyncio.ensure_future(self.world.sync(group_id, joined)))

    async def leave(self, group_id: str, number: int) -> None:
        joined = self.joined.pop((group_id, number), None)
        if joined is not None:
            await self.world.groups.leave(group_id, [LeavingMember(joined.member_id)])

    async def delete(self, group_id: str) -> None:
        await self.world.groups.delete_group(group_id)

    async def forget(self, group_id: str, key: TopicPartition) -> None:
        await self.world.groups.delete_offsets(group_id, [key])

    async def time(self, seconds: int) -> None:
        self.world.clock.ms += 1000 * seconds
        for group in self.world.groups.groups():
            self.world.groups._classic.execute(group, group.timer_expired(self.world.clock.ms))


def durable_state(world: Any) -> dict[str, Any]:
    """What has to survive: offsets, and every group that has been written and is not between two generations."""
    state = {}
    for group in world.groups.groups():
        offsets = dict(world.groups.committed(group.group_id).items())
        is_written = group.current_state_timestamp_ms >= 0
        is_settled = group.state in (GroupState.STABLE, GroupState.EMPTY)
        state[group.group_id] = (offsets, group.metadata() if is_written and is_settled else None)
    return state


@settings(max_examples=examples(60), deadline=None)
@given(operations=operations)
def test_the_live_state_equals_the_replay_of_the_log(operations: list[tuple[Any, ...]]) -> None:
    async def scenario() -> None:
        world = await begin(WORLD)
        operator = Operator(world, SETTLED)
        for operation in operations:
            await operator.do(*operation)
        before = durable_state(world)
        old = world.groups
        await world.restart()
        after = durable_state(world)
        for group_id, (offsets, metadata) in before.items():
            replayed_offsets, replayed_metadata = after.get(group_id, ({}, None))
            assert replayed_offsets == offsets
            if metadata is not None:
                assert replayed_metadata == metadata
        assert set(after) <= set(before)
        await old.stop()
        await world.groups.stop()
        for task in operator.waiting:
            task.cancel()
        await asyncio.gather(*operator.waiting, return_exceptions=True)

    asyncio.run(scenario())


@pytest.fixture(autouse=True)
def _surroundings(make_world: MakeWorld, settled: Settled) -> None:
    # The property test runs its own loops and cannot take function-scoped fixtures.
    global WORLD, SETTLED
    WORLD, SETTLED = make_world, settled


WORLD: MakeWorld
SETTLED: Settled


def test_one_groups_records_stay_in_its_partition(make_world: MakeWorld) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        for group_id in "abc":
            joined = await world.join(group_id)
            await world.sync(group_id, joined)
        for topic_partition, log in world.replicas.logs.items():
            for batch in log.batches():
                for record in decode_records(batch):
                    assert record.key is not None
                    key = parse_key(record.key)
                    assert isinstance(key, GroupKey)
                    assert partition_for(key.group_id, 4) == topic_partition.partition
        await world.groups.stop()

    asyncio.run(scenario())
