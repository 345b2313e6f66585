"""Commits and group changes that are not replicated in time: unknown to the client, decided by the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.logtier.group.consumer.consumer_step import Heartbeat
from headwater.logtier.group.coordinator import LOAD_WAIT_S_MAX
from headwater.logtier.group.events import GroupState, LeavingMember
from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.group.persistence.records import GroupKey, parse_group_value, parse_key
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.records.batch import decode_records
from headwater.logtier.state_topic.log import FINISH_MS_MAX
from headwater.logtier.state_topic.topic import partition_for
from tests.unit.group import test_consumer_groups as consumer
from tests.unit.group import test_group_apis as apis
from tests.unit.group.test_coordinator import T0, MakeWorld, Settled, begin, commit, committed, error_of
from tests.unit.group.test_group_apis import call
from tests.virtual_time import run_virtually

TIMEOUT_MS = 2_000


def in_world(make_world: MakeWorld, scenario: Callable[[Any, asyncio.Event], Awaitable[None]]) -> None:
    """Runs a scenario with a committed offset, after which writes wait for a gate."""

    async def main() -> None:
        world = await begin(make_world, **{"offsets.commit.timeout.ms": TIMEOUT_MS})
        await commit(world, "g", {T0: 1})
        world.replicas.gate = asyncio.Event()
        await scenario(world, world.replicas.gate)
        await world.groups.stop()

    run_virtually(main())


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def timed_out_commit(world: Any, offset: int) -> None:
    began_s = now_s()
    assert await error_of(commit(world, "g", {T0: offset})) is ErrorCode.coordinator_not_available
    assert now_s() - began_s == pytest.approx(TIMEOUT_MS / 1000)


def test_a_commit_that_is_not_replicated_in_time_counts_when_the_watermark_has_passed_it(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario(world: Any, gate: asyncio.Event) -> None:
        await timed_out_commit(world, 5)
        assert committed(world, "g") == {T0: 1}
        # The client repeats it, and another one follows: the log decides in its order.
        again = asyncio.ensure_future(commit(world, "g", {T0: 6}))
        await settled()
        gate.set()
        await again
        assert committed(world, "g") == {T0: 6}
        await world.restart()
        assert committed(world, "g") == {T0: 6}

    in_world(make_world, scenario)


def test_a_commit_that_is_not_replicated_does_not_count_when_the_leadership_goes(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario(world: Any, gate: asyncio.Event) -> None:
        await timed_out_commit(world, 5)
        index = partition_for("g", 4)
        world.replicas.elsewhere = {index}
        world.metadata.move(OFFSETS_TOPIC, index, leader=2, leader_epoch=1)
        await settled()
        gate.set()
        await settled()
        assert "g" not in world.groups._log.offsets
        assert await error_of(commit(world, "g", {T0: 6})) is ErrorCode.not_coordinator

    in_world(make_world, scenario)


def test_a_commit_in_a_transaction_that_is_unknown_counts_with_its_marker(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario(world: Any, gate: asyncio.Event) -> None:
        committing = world.groups.transactional.commit(
            "g",
            producer_id=7,
            producer_epoch=0,
            commits={T0: CommittedOffset(5)},
            verification=None,
            member_id="",
            group_instance_id=None,
            generation_id=-1,
        )
        assert await error_of(committing) is ErrorCode.coordinator_not_available
        key = await world.groups.offsets_partition("g")
        marker_offset = world.replicas.log(key).log_end_offset
        world.groups.transactional.marker_written(key, 7, marker_offset, True)
        assert committed(world, "g") == {T0: 1}
        gate.set()
        await settled()
        assert committed(world, "g") == {T0: 5}
        assert not world.groups.transactional.is_pending("g", T0)

    in_world(make_world, scenario)


def test_a_commit_waits_a_moment_for_the_load_of_its_group(make_world: MakeWorld, settled: Settled) -> None:
    """librdkafka shows COORDINATOR_LOAD_IN_PROGRESS to the application after two attempts within 0.3 s."""

    async def scenario(world: Any, gate: asyncio.Event) -> None:
        world.metadata.add("t")
        await world.restart()
        waiting = asyncio.ensure_future(call(world, "offset_commit", 9, apis.commit_request(apis.partition(0))))
        await settled()
        assert not waiting.done()
        gate.set()
        assert apis.codes(await waiting) == [ErrorCode.none]
        gate.clear()
        await world.restart()
        began_s = now_s()
        answer = await call(world, "offset_commit", 9, apis.commit_request(apis.partition(0)))
        assert apis.codes(answer) == [ErrorCode.coordinator_load_in_progress]
        assert now_s() - began_s == LOAD_WAIT_S_MAX
        gate.set()

    in_world(make_world, scenario)


def test_groups_are_served_only_when_their_load_is_committed(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario(world: Any, gate: asyncio.Event) -> None:
        await world.restart()
        await asyncio.sleep(1_000)
        assert await error_of(commit(world, "g", {T0: 5})) is ErrorCode.coordinator_load_in_progress
        assert (await world.join("g")).error is ErrorCode.coordinator_load_in_progress
        gate.set()
        await settled()
        assert committed(world, "g") == {T0: 1}

    in_world(make_world, scenario)


async def described(world: Any, name: str, version: int) -> Any:
    """What a description of group `g` shows."""
    request = SimpleNamespace(groups=["g"], group_ids=["g"], include_authorized_operations=False)
    [group] = (await call(world, name, version, request))["groups"]
    return group


async def listed(world: Any) -> tuple[ErrorCode, dict[str, str]]:
    answer = await call(world, "list_groups", 5, SimpleNamespace(states_filter=(), types_filter=()))
    return answer["error_code"], {each["group_id"]: each["group_state"] for each in answer["groups"]}


def test_groups_are_listed_only_when_all_partitions_are_loaded(make_world: MakeWorld, settled: Settled) -> None:
    """As in Kafka, whose clients ask again: a list in which the groups of a waiting partition are missing looks whole.

    The metrics have the others meanwhile: the wait for an ISR may be long.
    """

    async def scenario(world: Any, gate: asyncio.Event) -> None:
        assert await listed(world) == (ErrorCode.none, {"g": "Empty"})
        other = next(name for name in "abcdef" if partition_for(name, 4) != partition_for("g", 4))
        world.replicas.gate = None
        await commit(world, other, {T0: 2})
        key = await world.groups.offsets_partition("g")
        commitment = world.replicas.commitment
        world.replicas.gate = gate
        world.replicas.commitment = lambda of, *end: commitment(of, *end) if of == key else None
        await world.restart()
        assert await listed(world) == (ErrorCode.coordinator_load_in_progress, {})
        assert [each.group_id for each in world.groups.loaded_groups()] == [other]
        gate.set()
        await settled()
        assert await listed(world) == (ErrorCode.none, {"g": "Empty", other: "Empty"})

    in_world(make_world, scenario)


def test_groups_of_a_damaged_partition_are_not_listed(make_world: MakeWorld) -> None:
    """As in Kafka: the broker has logged the error, and a list of the others is better than none."""

    async def scenario(world: Any, _: asyncio.Event) -> None:
        key = await world.groups.offsets_partition("g")
        world.replicas.log(key).stored.append(b"damaged")
        world.replicas.gate = None
        await world.restart()
        assert await listed(world) == (ErrorCode.none, {})

    in_world(make_world, scenario)


def test_a_consumer_group_is_described_as_it_is_committed(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario(world: Any, gate: asyncio.Event) -> None:
        def shown(group: Any) -> tuple[str, int, list[str]]:
            return group["group_state"], group["group_epoch"], [each["member_id"] for each in group["members"]]

        world.replicas.gate = None
        first = await consumer.join(world, "a")
        before = shown(await described(world, "consumer_group_describe", 1))
        assert before == ("Stable", first.member_epoch, ["a"])
        world.replicas.gate = gate
        assert await error_of(consumer.join(world, "b")) is ErrorCode.coordinator_not_available
        assert shown(await described(world, "consumer_group_describe", 1)) == before
        gate.set()
        await settled()
        state, epoch, members = shown(await described(world, "consumer_group_describe", 1))
        assert (state, epoch, members) == ("Reconciling", first.member_epoch + 1, ["a", "b"])

    in_world(make_world, scenario)


@pytest.mark.parametrize("has_members", [True, False])
def test_a_consumer_group_whose_first_record_is_unknown_is_shown_as_what_it_is_to_replace(
    make_world: MakeWorld, settled: Settled, has_members: bool
) -> None:
    async def scenario(world: Any, gate: asyncio.Event) -> None:
        world.replicas.gate = None
        joined = await consumer.settled_classic(world) if has_members else None
        before = await described(world, "describe_groups", 6)
        assert before["group_state"] == ("Stable" if has_members else "Empty")
        world.replicas.gate = gate
        assert await error_of(consumer.join(world, "a")) is ErrorCode.coordinator_not_available
        assert await described(world, "describe_groups", 6) == before
        assert (await described(world, "consumer_group_describe", 1))["error_code"] is ErrorCode.group_id_not_found
        assert await listed(world) == (ErrorCode.none, {"g": before["group_state"]})
        gate.set()
        await settled()
        after = await described(world, "consumer_group_describe", 1)
        assert {each["member_id"] for each in after["members"]} == {"a"} | ({joined.member_id} if joined else set())
        assert (await described(world, "describe_groups", 6))["error_code"] is ErrorCode.group_id_not_found

    in_world(make_world, scenario)


def test_a_group_without_a_committed_record_is_not_shown(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario(world: Any, gate: asyncio.Event) -> None:
        beat = Heartbeat("a", 0, "a", "/h", rebalance_timeout_ms=60_000, topic_names=frozenset({"t"}))
        joining = world.groups.consumer_heartbeat("new", beat)
        assert await error_of(joining) is ErrorCode.coordinator_not_available
        assert await listed(world) == (ErrorCode.none, {"g": "Empty"})
        assert world.groups.group("new") is None
        gate.set()
        await settled()
        assert (await listed(world))[1].keys() == {"g", "new"}

    in_world(make_world, scenario)


def test_a_classic_group_is_described_as_stable_only_with_a_committed_generation(
    make_world: MakeWorld, settled: Settled
) -> None:
    """Its members alone are shown before, as in Kafka: that they have joined is known to the coordinator only."""

    async def scenario(world: Any, gate: asyncio.Event) -> None:
        def shown(group: Any) -> tuple[str, str, list[bytes]]:
            return (
                group["group_state"],
                group["protocol_data"],
                [each["member_assignment"] for each in group["members"]],
            )

        joined = await world.join("g")
        syncing = asyncio.ensure_future(world.sync("g", joined))
        await settled()
        assert shown(await described(world, "describe_groups", 6)) == ("CompletingRebalance", "", [b""])
        gate.set()
        assert (await syncing).error is ErrorCode.none
        assert shown(await described(world, "describe_groups", 6)) == ("Stable", "range", [b"everything"])

    in_world(make_world, scenario)


def generation(world: Any) -> tuple[int, GroupState, dict[str, bytes]]:
    group = world.groups.group("g")
    return group.generation_id, group.state, group.members.assignments()


@pytest.mark.parametrize("is_stable", [True, False])
def test_a_classic_group_whose_generation_is_unknown_goes_on_with_the_next_one_which_follows_in_the_log(
    make_world: MakeWorld, settled: Settled, is_stable: bool
) -> None:
    """No member has got the unknown generation. It is committed after all, and the log's last one is the live one."""

    async def scenario(world: Any, gate: asyncio.Event) -> None:
        joined = await world.join("g")
        synced = await world.sync("g", joined)
        assert (joined.generation_id, synced.error) == (1, ErrorCode.coordinator_not_available)
        assert generation(world) == (1, GroupState.PREPARING_REBALANCE, {joined.member_id: b""})
        if is_stable:
            again = await world.join("g", member_id=joined.member_id)
            syncing = asyncio.ensure_future(world.sync("g", again))
            await settled()
            assert (again.generation_id, syncing.done()) == (2, False)
            last = 2, GroupState.STABLE, {joined.member_id: b"everything"}
        else:
            assert await world.groups.leave("g", [LeavingMember(joined.member_id)]) == [ErrorCode.none]
            await settled()
            last = 2, GroupState.EMPTY, {}
        gate.set()
        await settled()
        assert generation(world) == last
        log = world.replicas.log(await world.groups.offsets_partition("g"))
        records = [record for batch in log.stored for record in decode_records(batch)]
        groups = [each for each in records if isinstance(parse_key(each.key or b""), GroupKey)]
        written = [parse_group_value(each.value or b"").generation_id for each in groups]
        assert written == [1, 2]
        await world.restart()
        assert generation(world) == last

    in_world(make_world, scenario)


def test_a_consumer_group_keeps_its_lock_while_a_change_is_unknown(make_world: MakeWorld, settled: Settled) -> None:
    """The next decision counts on the change: it would otherwise be made on a state that the log overtakes."""

    async def scenario(world: Any, gate: asyncio.Event) -> None:
        assert await error_of(consumer.join(world, "a")) is ErrorCode.coordinator_not_available
        writes = world.replicas.writes
        began_s = now_s()
        assert await error_of(consumer.join(world, "b")) is ErrorCode.coordinator_not_available
        assert now_s() - began_s == pytest.approx(TIMEOUT_MS / 1000)
        assert await error_of(world.groups.delete_group("g")) is ErrorCode.coordinator_not_available
        assert (world.replicas.writes, world.groups._groups["g"].state.members) == (writes, {})
        gate.set()
        await settled()
        assert set(consumer.group(world).state.members) == {"a"}
        await consumer.join(world, "b")
        assert set(consumer.group(world).state.members) == {"a", "b"}

    in_world(make_world, scenario)


def test_a_consumer_group_with_an_unknown_change_is_free_when_the_leadership_goes(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario(world: Any, gate: asyncio.Event) -> None:
        assert await error_of(consumer.join(world, "a")) is ErrorCode.coordinator_not_available
        waiting = asyncio.ensure_future(consumer.join(world, "b"))
        await settled()
        index = partition_for("g", 4)
        world.replicas.elsewhere = {index}
        world.metadata.move(OFFSETS_TOPIC, index, leader=2, leader_epoch=1)
        await settled()
        assert await error_of(waiting) is ErrorCode.not_coordinator
        gate.set()
        await settled()
        assert world.groups.groups() == []

    in_world(make_world, scenario)


def test_a_deletion_that_is_not_replicated_in_time_is_finished_later(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario(world: Any, gate: asyncio.Event) -> None:
        assert await error_of(world.groups.delete_group("g")) is ErrorCode.coordinator_not_available
        assert committed(world, "g") == {T0: 1}
        gate.set()
        await settled()
        assert (world.groups.group("g"), committed(world, "g")) == (None, {})

    in_world(make_world, scenario)


def test_a_stop_is_bounded_although_writes_are_never_replicated(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario(world: Any, gate: asyncio.Event) -> None:
        joining = asyncio.ensure_future(consumer.join(world, "a"))
        committing = asyncio.ensure_future(commit(world, "h", {T0: 5}))
        classic = await world.join("classic")
        syncing = asyncio.ensure_future(world.sync("classic", classic))
        await settled()
        began_s = now_s()
        await world.groups.stop()
        assert now_s() - began_s <= (FINISH_MS_MAX + TIMEOUT_MS) / 1000
        assert await error_of(joining) is ErrorCode.coordinator_not_available
        assert await error_of(committing) is ErrorCode.coordinator_not_available
        assert (await syncing).error is not ErrorCode.none
        world.replicas.gate = None
        await world.restart()
        assert committed(world, "h") == {T0: 5}

    in_world(make_world, scenario)


def test_a_stop_takes_a_while_only_although_a_generation_is_never_replicated(make_world: MakeWorld) -> None:
    async def main() -> None:
        world = await begin(make_world, **{"offsets.commit.timeout.ms": 10 * FINISH_MS_MAX})
        joined = await world.join("classic")
        world.replicas.gate = asyncio.Event()
        syncing = asyncio.ensure_future(world.sync("classic", joined))
        await asyncio.sleep(0.1)
        began_s = now_s()
        await world.groups.stop()
        await syncing
        assert now_s() - began_s <= 2 * FINISH_MS_MAX / 1000

    run_virtually(main())
