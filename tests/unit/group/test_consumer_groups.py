"""Consumer groups (KIP-848) behind the coordinator: writes, restarts, timers, and the change between protocols."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.consumer.consumer_state import ConsumerGroupState
from headwater.logtier.group.consumer.consumer_step import Heartbeat, HeartbeatResult
from headwater.logtier.group.consumer_protocol import encode_assignment
from headwater.logtier.group.events import GroupState, LeavingMember, Sync
from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import decode_records

MakeWorld = Callable[..., Any]
Settled = Callable[[], Awaitable[None]]

T0 = TopicPartition("t", 0)


async def begin(make_world: MakeWorld, **properties: object) -> Any:
    """A started coordinator, with the topic `t` of three partitions and `__consumer_offsets`."""
    world = make_world(
        {
            "group.consumer.min.session.timeout.ms": 10,
            "group.consumer.min.heartbeat.interval.ms": 1,
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
    )
    await world.groups.start()
    world.metadata.add("t")
    await world.groups.find("g")
    return world


def owning(world: Any, *indexes: int) -> dict[UUID, frozenset[int]]:
    return {world.metadata.image.topics["t"].topic_id: frozenset(indexes)} if indexes else {}


async def join(world: Any, member_id: str, **named: Any) -> Any:
    beat = {
        "rebalance_timeout_ms": 60_000,
        "topic_names": frozenset({"t"}),
        "owned": {},
        **named,
    }
    return await world.groups.consumer_heartbeat("g", Heartbeat(member_id, 0, member_id, "/10.0.0.1", **beat))


async def beat(world: Any, member_id: str, epoch: int, *owned: int, **named: Any) -> Any:
    event = Heartbeat(member_id, epoch, member_id, "/10.0.0.1", owned=owning(world, *owned), **named)
    return await world.groups.consumer_heartbeat("g", event)


async def leave(world: Any, member_id: str, epoch: int = -1, instance_id: str | None = None) -> Any:
    return await world.groups.consumer_heartbeat("g", Heartbeat(member_id, epoch, "c", "/h", instance_id))


def assigned(result: HeartbeatResult) -> set[int]:
    assert result.assignment is not None
    return set().union(*result.assignment.values())


async def error_of(work: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await work
    return caught.value.code


def in_world(scenario: Callable[[Any], Awaitable[None]], make_world: MakeWorld, **properties: object) -> None:
    async def run() -> None:
        world = await begin(make_world, **properties)
        await scenario(world)
        await world.groups.stop()

    asyncio.run(run())


def group(world: Any) -> Any:
    return world.groups.group("g")


def test_members_share_and_go_on_after_a_restart(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        assert assigned(await join(world, "a")) == {0, 1, 2}
        assert assigned(await join(world, "b")) == set()
        assert assigned(await beat(world, "a", 1, 0, 1)) == {0, 1}
        before = group(world).state
        await world.restart()
        after = group(world).state
        assert isinstance(group(world), ConsumerGroup)
        assert (after.members, after.targets, after.epoch) == (before.members, before.targets, before.epoch)
        assert assigned(await beat(world, "b", 2)) == {2}
        assert group(world).state.phase is ConsumerGroupState.STABLE

    in_world(scenario, make_world)


def test_a_heartbeat_is_answered_only_after_it_is_in_the_log(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario(world: Any) -> None:
        world.replicas.gate = asyncio.Event()
        joining = asyncio.ensure_future(join(world, "a"))
        await settled()
        assert not joining.done()
        assert world.groups.group("g") is None
        # Another one of the group waits for its turn, and sees what the first one wrote.
        second = asyncio.ensure_future(join(world, "b"))
        await settled()
        world.replicas.gate.set()
        assert assigned(await joining) == {0, 1, 2}
        assert assigned(await second) == set()

    in_world(scenario, make_world)


def test_a_step_is_taken_over_though_its_client_has_gone(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario(world: Any) -> None:
        world.replicas.gate = asyncio.Event()
        joining = asyncio.ensure_future(join(world, "a"))
        await settled()
        joining.cancel()
        await settled()
        world.replicas.gate.set()
        await settled()
        assert set(group(world).state.members) == {"a"}
        await world.restart()
        assert set(group(world).state.members) == {"a"}

    in_world(scenario, make_world)


def test_a_step_that_is_not_written_is_as_if_it_had_not_been(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        world.replicas.error = KafkaError(ErrorCode.not_enough_replicas)
        assert await error_of(join(world, "a")) is ErrorCode.coordinator_not_available
        assert group(world) is None
        world.replicas.error = None
        await join(world, "a")
        world.replicas.error = OSError("No space left on device")
        assert await error_of(leave(world, "a")) is ErrorCode.not_coordinator
        assert set(group(world).state.members) == {"a"}
        world.replicas.error = None
        assert (await beat(world, "a", 1, 0, 1, 2)).member_epoch == 1

    in_world(scenario, make_world)


def test_a_refused_join_leaves_no_group_behind(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        assert await error_of(join(world, "a", topic_regex="[")) is ErrorCode.invalid_regular_expression
        assert await error_of(beat(world, "a", 3)) is ErrorCode.group_id_not_found
        assert await error_of(leave(world, "a")) is ErrorCode.group_id_not_found
        assert world.groups.groups() == []

    in_world(scenario, make_world)


def test_a_member_that_is_not_heard_of_is_put_out_and_the_line_says_so(
    make_world: MakeWorld, settled: Settled, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: Any) -> None:
        await join(world, "a")
        world.clock.ms += 60_000
        world.groups._consumer._fire(group(world))
        await settled()
        assert group(world).state.phase is ConsumerGroupState.EMPTY
        assert await error_of(beat(world, "a", 1)) is ErrorCode.unknown_member_id

    with caplog.at_level(logging.INFO):
        in_world(scenario, make_world)
    assert "group g: epoch 2 with no members, after 0 ms: member a was not heard of in time" in caplog.text
    assert "member a (client a) joined from /10.0.0.1" in caplog.text


def test_an_expiry_that_cannot_be_written_is_tried_again(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario(world: Any) -> None:
        await join(world, "a")
        world.clock.ms += 60_000
        world.replicas.error = OSError("No space left on device")
        world.groups._consumer._fire(group(world))
        await settled()
        assert set(group(world).state.members) == {"a"}
        world.replicas.error = None
        world.groups._consumer._fire(group(world))
        await settled()
        assert group(world).state.members == {}

    in_world(scenario, make_world)


def test_topics_are_looked_at_again_when_they_change(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        await join(world, "a", topic_names=frozenset({"u"}), topic_regex="t.*")
        world.metadata.add("u", 1)
        world.metadata.add("tt", 2)
        result = await beat(world, "a", 1, 0, 1, 2)
        assert result.member_epoch == 2
        names = {world.metadata.image.topic_names[each] for each in result.assignment or {}}
        assert names == {"t", "tt", "u"}
        world.metadata.remove("tt")
        assert (await beat(world, "a", 2, 0, 1, 2)).member_epoch == 3

    in_world(scenario, make_world)


def test_a_topic_that_grows_while_a_step_is_written_is_looked_at_by_the_next_heartbeat(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario(world: Any) -> None:
        world.replicas.gate = asyncio.Event()
        joining = asyncio.ensure_future(join(world, "a"))
        await settled()
        world.metadata.grow("t", 4)
        world.replicas.gate.set()
        assert assigned(await joining) == {0, 1, 2}
        assert assigned(await beat(world, "a", 1, 0, 1, 2)) == {0, 1, 2, 3}

    in_world(scenario, make_world)


def test_a_topic_that_is_made_while_names_are_matched_is_matched_by_the_next_heartbeat(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario(world: Any) -> None:
        await join(world, "a", topic_names=None, topic_regex="t.*")
        # The second one has matched its names and waits for the turn of the first.
        world.replicas.gate = asyncio.Event()
        first = asyncio.ensure_future(join(world, "b", topic_names=frozenset({"t"})))
        await settled()
        second = asyncio.ensure_future(join(world, "c", topic_names=None, topic_regex="t.*"))
        await settled()
        world.metadata.add("tt", 1)
        world.replicas.gate.set()
        await asyncio.gather(first, second)
        await beat(world, "a", 1, 0, 1, 2)
        assert group(world).state.regexes["t.*"].topics == {"t", "tt"}

    in_world(scenario, make_world)


def test_a_regular_expression_matches_only_what_the_member_may_see(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        world.metadata.add("secret")
        event = Heartbeat("a", 0, "a", "/h", rebalance_timeout_ms=1000, topic_regex=".*", owned={})
        await world.groups.consumer_heartbeat("g", event, lambda topic: topic == "t")
        assert group(world).state.regexes[".*"].topics == {"t"}

    in_world(scenario, make_world)


def test_many_topics_are_matched_in_turns(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        for number in range(1100):
            world.metadata.add(f"many-{number}", 1)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(others())
        result = await join(world, "a", topic_names=None, topic_regex="many-.*")
        other.cancel()
        assert len(result.assignment or {}) == 1100
        assert turns > 2

    in_world(scenario, make_world)


def test_an_expression_of_a_large_program_is_matched_in_more_turns(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        for number in range(102):
            world.metadata.add(f"many-{number:0244}", 1)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(others())
        # 4,000 instructions: two of the longest names in a turn.
        await join(world, "a", topic_names=None, topic_regex="([xy]?){1000}([xy]?){1000}many-.*")
        other.cancel()
        assert turns > 50

    in_world(scenario, make_world)


def test_a_group_has_its_own_configs(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        assert (await join(world, "a")).heartbeat_interval_ms == 5000
        world.metadata.image = world.metadata.image.apply(
            [("/config/groups/g", b'{"version":1,"config":{"consumer.heartbeat.interval.ms":"7000"}}')]
        )
        assert (await beat(world, "a", 1, 0, 1, 2)).heartbeat_interval_ms == 7000

    in_world(scenario, make_world)


def test_a_producer_that_was_told_nothing_of_the_group_commits_in_its_transaction(make_world: MakeWorld) -> None:
    """Before KIP-447 producers named the group alone; a transaction's fencing is enough (KAFKA-18060)."""

    async def commit(world: Any, **member: Any) -> None:
        named = {"member_id": "", "group_instance_id": None, "generation_id": -1, **member}
        await world.groups.transactional.commit(
            "g",
            producer_id=77,
            producer_epoch=0,
            commits={T0: CommittedOffset(7, commit_timestamp_ms=world.clock.ms)},
            verification=None,
            **named,
        )

    async def scenario(world: Any) -> None:
        await join(world, "a")
        await commit(world)
        await commit(world, member_id="a", generation_id=1)
        assert await error_of(commit(world, member_id="stranger")) is ErrorCode.unknown_member_id
        assert await error_of(commit(world, group_instance_id="i")) is ErrorCode.unknown_member_id
        assert await error_of(commit(world, generation_id=1)) is ErrorCode.unknown_member_id

    in_world(scenario, make_world)


def test_commits_and_fetches_are_of_the_members_epoch(make_world: MakeWorld) -> None:
    async def commit(world: Any, member_id: str, epoch: int, api_version: int = 9) -> None:
        await world.groups.commit_offsets(
            "g",
            member_id=member_id,
            group_instance_id=None,
            generation_id=epoch,
            commits={T0: CommittedOffset(7)},
            api_version=api_version,
        )

    async def scenario(world: Any) -> None:
        await join(world, "a")
        await commit(world, "a", 1)
        assert await error_of(commit(world, "a", 0)) is ErrorCode.stale_member_epoch
        assert await error_of(commit(world, "a", 1, 8)) is ErrorCode.unsupported_version
        assert await error_of(commit(world, "", -1)) is ErrorCode.unknown_member_id
        assert world.groups.committed("g", member_id="a", member_epoch=1).get(T0) == CommittedOffset(7)
        assert world.groups.committed("g").get(T0) is not None
        with pytest.raises(KafkaError, match="epoch 5"):
            world.groups.committed("g", member_id="a", member_epoch=5)
        # What members consume is neither deleted nor expires.
        assert await world.groups.delete_offsets("g", [T0]) == {T0: ErrorCode.group_subscribed_to_topic}
        world.clock.ms += 100 * 24 * 3600 * 1000
        await world.groups.expire()
        assert world.groups.committed("g")
        await leave(world, "a")
        await world.groups.expire()
        assert not world.groups.committed("g")
        assert group(world) is None

    in_world(scenario, make_world)


def test_a_deleted_group_leaves_only_tombstones(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        await join(world, "a", topic_regex="t.*")
        await world.groups.commit_offsets(
            "g", member_id="a", group_instance_id=None, generation_id=1, commits={T0: CommittedOffset(7)}
        )
        assert await error_of(world.groups.delete_group("g")) is ErrorCode.non_empty_group
        await leave(world, "a")
        await world.groups.delete_group("g")
        assert group(world) is None
        last: dict[bytes, bytes | None] = {}
        for topic_partition, log in world.replicas.logs.items():
            assert topic_partition.topic == OFFSETS_TOPIC
            for batch in log.batches():
                last.update((record.key, record.value) for record in decode_records(batch) if record.key)
        assert len(last) >= 7
        assert set(last.values()) == {None}
        await world.restart()
        assert world.groups.groups() == []

    in_world(scenario, make_world)


def subscription(*topics: str) -> bytes:
    names = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
    return b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff\0\0\0\0"


PROTOCOLS = [("range", subscription("t"))]


async def settled_classic(world: Any, user_data: bytes = b"", assignor: str = "range") -> Any:
    """A classic group of one member that has all of the topic."""
    joined = await world.join("g", protocols=[(assignor, subscription("t"))])
    everything = encode_assignment(1, {"t": [0, 1, 2]})
    if user_data:
        everything = everything[:-4] + len(user_data).to_bytes(4, "big") + user_data
    await world.groups.sync(
        "g",
        Sync(
            token=0,
            member_id=joined.member_id,
            group_instance_id=None,
            generation_id=joined.generation_id,
            protocol_type="consumer",
            protocol_name=assignor,
            assignments={joined.member_id: everything},
        ),
    )
    return joined


def test_a_classic_group_becomes_a_consumer_group_and_back_while_its_members_go_on(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario(world: Any) -> None:
        classic = await settled_classic(world)
        first = await join(world, "a")
        assert isinstance(group(world), ConsumerGroup)
        assert (first.member_epoch, assigned(first)) == (2, set())
        await world.restart()
        assert len(group(world).state.members) == 2
        heartbeat = world.groups.heartbeat
        assert heartbeat("g", classic.member_id, None, 1) is ErrorCode.rebalance_in_progress
        # It says that it owns nothing, so what it has to give up is free at once.
        rejoined = await world.join("g", member_id=classic.member_id, protocols=PROTOCOLS)
        assert rejoined.generation_id == 2
        synced = await world.sync("g", rejoined)
        assert len(assigned(await beat(world, "a", 2))) == 1
        assert synced.assignment == encode_assignment(1, {"t": [0, 1]})
        assert heartbeat("g", classic.member_id, None, 2) is ErrorCode.none
        await leave(world, "a")
        back = group(world)
        assert isinstance(back, Group)
        assert back.state is GroupState.PREPARING_REBALANCE
        await world.restart()
        assert isinstance(group(world), Group)
        rejoined = await world.join("g", member_id=classic.member_id, protocols=PROTOCOLS)
        assert (rejoined.error, rejoined.generation_id) == (ErrorCode.none, 3)

    in_world(scenario, make_world)


def test_who_waits_in_a_classic_group_is_asked_to_join_the_consumer_group(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario(world: Any) -> None:
        classic = await settled_classic(world)
        waiting = asyncio.ensure_future(world.join("g", protocols=PROTOCOLS))
        await settled()
        assert group(world).state is GroupState.PREPARING_REBALANCE
        await join(world, "a")
        assert (await waiting).error is ErrorCode.rebalance_in_progress
        assert set(group(world).state.members) > {classic.member_id, "a"}

    in_world(scenario, make_world)


@pytest.mark.parametrize(
    ("properties", "user_data", "protocol_type"),
    [
        ({"group.consumer.migration.policy": "disabled"}, b"", "consumer"),
        ({"group.consumer.migration.policy": "DOWNGRADE"}, b"", "consumer"),
        ({"group.consumer.max.size": 1}, b"", "connect"),
        ({}, b"a custom assignor's", "consumer"),
    ],
    ids=["disabled", "downgrade-only", "other-protocol", "custom-assignor"],
)
def test_a_classic_group_that_cannot_change_stays(
    make_world: MakeWorld, properties: dict[str, object], user_data: bytes, protocol_type: str
) -> None:
    async def scenario(world: Any) -> None:
        if protocol_type == "consumer":
            classic = await settled_classic(world, user_data, "mine" if user_data else "range")
        else:
            classic = await world.join("g", protocol_type=protocol_type)
        assert await error_of(join(world, "a")) is ErrorCode.group_id_not_found
        assert isinstance(group(world), Group)
        assert world.groups.heartbeat("g", classic.member_id, None, 1) is ErrorCode.none

    in_world(scenario, make_world, **properties)


def test_what_a_sticky_assignor_sends_with_its_assignment_is_not_missed(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        await settled_classic(world, b"its last assignment", "cooperative-sticky")
        await join(world, "a")
        assert isinstance(group(world), ConsumerGroup)

    in_world(scenario, make_world)


def test_an_upgrade_that_is_not_written_leaves_the_classic_group(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        classic = await settled_classic(world)
        world.replicas.error = OSError("No space left on device")
        assert await error_of(join(world, "a")) is ErrorCode.not_coordinator
        assert isinstance(group(world), Group)
        world.replicas.error = None
        assert world.groups.heartbeat("g", classic.member_id, None, 1) is ErrorCode.none

    in_world(scenario, make_world)


def test_empty_groups_change_their_protocol_both_ways(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        classic = await settled_classic(world)
        await world.groups.leave("g", [LeavingMember(classic.member_id)])
        await join(world, "a")
        await leave(world, "a")
        again = await world.join("g", protocols=PROTOCOLS)
        assert again.generation_id == 1
        assert isinstance(group(world), Group)
        await world.sync("g", again)
        await world.restart()
        assert isinstance(group(world), Group)
        assert (await world.groups.leave("g", [LeavingMember(again.member_id)])) == [ErrorCode.none]
        await join(world, "a")
        await world.restart()
        assert isinstance(group(world), ConsumerGroup)

    in_world(scenario, make_world)


def test_an_administrator_removes_members_by_leave_group(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        await join(world, "a", instance_id="one")
        leaving = [LeavingMember("", "one"), LeavingMember("x"), LeavingMember("y", "two")]
        assert await world.groups.leave("g", leaving) == [
            ErrorCode.none,
            ErrorCode.unknown_member_id,
            ErrorCode.unknown_member_id,
        ]
        assert group(world).state.members == {}

    in_world(scenario, make_world)


def test_the_last_member_of_the_consumer_protocol_may_come_back_by_the_classic_one(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario(world: Any) -> None:
        await join(world, "a", instance_id="one")
        other = await world.join("g", protocols=PROTOCOLS, group_instance_id="two")
        assert other.generation_id == 2
        coming = asyncio.ensure_future(world.join("g", protocols=PROTOCOLS, group_instance_id="one"))
        await settled()
        assert isinstance(group(world), Group)
        again = await world.join("g", member_id=other.member_id, protocols=PROTOCOLS, group_instance_id="two")
        assert {(await coming).error, again.error} == {ErrorCode.none}
        assert len(group(world).members) == 2

    in_world(scenario, make_world)
