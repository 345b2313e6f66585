"""What happens to a group coordinator's writes when clients, or partitions, go meanwhile."""

from __future__ import annotations

import asyncio

from headwater.logtier.group.events import LeavingMember
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.state_topic.topic import partition_for
from tests.unit.group.test_coordinator import T0, T1, MakeWorld, Settled, begin, commit, committed, error_of


def test_a_commit_whose_client_has_gone_counts_as_it_does_after_a_restart(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        await commit(world, "g", {T0: 1})
        world.replicas.gate = asyncio.Event()
        tasks = [asyncio.ensure_future(commit(world, group_id, {T0: 5})) for group_id in ("g", "new")]
        await settled()
        for task in tasks:
            task.cancel()
        await settled()
        world.replicas.gate.set()
        await settled()
        assert (committed(world, "g"), committed(world, "new")) == ({T0: 5}, {T0: 5})
        assert {group.group_id for group in world.groups.groups()} == {"g", "new"}
        await world.restart()
        assert (committed(world, "g"), committed(world, "new")) == ({T0: 5}, {T0: 5})
        await world.groups.stop()

    asyncio.run(scenario())


def test_a_deletion_whose_client_has_gone_is_finished(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        await commit(world, "g", {T0: 1})
        world.replicas.gate = asyncio.Event()
        # The commit is in the log and not yet applied when the deletion comes.
        committing = asyncio.ensure_future(commit(world, "g", {T1: 5}))
        await settled()
        deleting = asyncio.ensure_future(world.groups.delete_group("g"))
        await settled()
        deleting.cancel()
        await settled()
        world.replicas.gate.set()
        await settled()
        await committing
        assert (world.groups.group("g"), committed(world, "g")) == (None, {})
        await world.restart()
        assert (world.groups.group("g"), committed(world, "g")) == (None, {})
        await world.groups.stop()

    asyncio.run(scenario())


def test_a_partition_that_another_broker_leads_is_coordinated_there(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        joined = await world.join("g")
        await world.sync("g", joined)
        await commit(world, "g", {T0: 1}, member_id=joined.member_id, generation_id=1)
        index = partition_for("g", 4)
        other = next(name for name in map(str, range(99)) if partition_for(name, 4) != index)
        await commit(world, other, {T0: 2})
        waiting = asyncio.ensure_future(world.join("g"))
        world.replicas.gate = asyncio.Event()
        committing = asyncio.ensure_future(commit(world, "g", {T1: 1}, member_id=joined.member_id, generation_id=1))
        await settled()
        world.replicas.elsewhere = {index}
        world.metadata.move(OFFSETS_TOPIC, index, leader=2, leader_epoch=1)
        await settled()
        assert await error_of(committing) is ErrorCode.not_coordinator
        assert (await waiting).error is ErrorCode.not_coordinator
        world.replicas.gate.set()
        assert [group.group_id for group in world.groups.groups()] == [other]
        await world.groups.stop()

    asyncio.run(scenario())


def test_partitions_lost_together_are_dropped_together_and_the_others_remain(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        names = {partition_for(name, 4): name for name in map(str, range(99))}
        for name in names.values():
            await commit(world, name, {T0: 1})
            await world.join(name)
        lost = {0, 2}
        world.replicas.elsewhere = lost
        for index in lost:
            world.metadata.move(OFFSETS_TOPIC, index, leader=2, leader_epoch=1)
        await settled()
        remaining = {names[1], names[3]}
        assert {group.group_id for group in world.groups.groups()} == remaining
        assert world.groups._log.offsets.keys() == remaining
        await world.groups.stop()

    asyncio.run(scenario())


def test_commits_for_a_topic_that_is_made_again_outlive_the_tombstones_of_the_one_before(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        for group_id in ("a", "b"):
            await commit(world, group_id, {T0: 1})
        world.replicas.gate = asyncio.Event()
        world.metadata.remove("t")
        await settled()
        world.metadata.add("t")
        await settled()
        committing = [
            asyncio.ensure_future(commit(world, group_id, {T0: offset})) for group_id, offset in (("a", 78), ("b", 77))
        ]
        await settled()
        world.replicas.gate.set()
        await asyncio.gather(*committing)
        for _ in range(2):
            await settled()
            assert (committed(world, "a"), committed(world, "b")) == ({T0: 78}, {T0: 77})
            await world.restart()
        await world.groups.stop()

    asyncio.run(scenario())


def test_a_commit_that_is_being_written_does_not_expire_with_the_one_before(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario() -> None:
        world = await begin(make_world, **{"offsets.retention.minutes": 1})
        await commit(world, "g", {T0: 1})
        world.clock.ms += 60_000
        world.replicas.gate = asyncio.Event()
        committing = asyncio.ensure_future(commit(world, "g", {T0: 2}))
        await settled()
        expiring = asyncio.ensure_future(world.groups.expire())
        await settled()
        world.replicas.gate.set()
        await asyncio.gather(committing, expiring)
        assert committed(world, "g") == {T0: 2}
        await world.restart()
        assert committed(world, "g") == {T0: 2}
        await world.groups.stop()

    asyncio.run(scenario())


def test_a_group_whose_commit_is_being_written_is_not_removed_as_unused(
    make_world: MakeWorld, settled: Settled
) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        joined = await world.join("g")
        await world.sync("g", joined)
        await world.groups.leave("g", [LeavingMember(joined.member_id)])
        await settled()
        world.replicas.gate = asyncio.Event()
        committing = asyncio.ensure_future(commit(world, "g", {T0: 2}))
        await settled()
        expiring = asyncio.ensure_future(world.groups.expire())
        await settled()
        world.replicas.gate.set()
        await asyncio.gather(committing, expiring)
        assert committed(world, "g") == {T0: 2}
        await world.restart()
        assert committed(world, "g") == {T0: 2}
        await world.groups.stop()

    asyncio.run(scenario())


def test_nothing_is_written_once_the_broker_stops(make_world: MakeWorld, settled: Settled) -> None:
    async def scenario() -> None:
        world = await begin(make_world)
        for group_id in ("g", "h"):
            await commit(world, group_id, {T0: 1})
        world.replicas.gate = asyncio.Event()
        committing = asyncio.ensure_future(commit(world, "g", {T0: 2}))
        await settled()
        stopping = asyncio.ensure_future(world.groups.stop())
        await settled()
        writes = world.replicas.writes
        late = [
            asyncio.ensure_future(commit(world, "g", {T0: 3})),
            asyncio.ensure_future(commit(world, "new", {T0: 3})),
            asyncio.ensure_future(world.groups.delete_offsets("h", [T0])),
            asyncio.ensure_future(world.groups.delete_group("h")),
        ]
        await settled()
        assert world.replicas.writes == writes
        for attempt in late:
            assert await error_of(attempt) is ErrorCode.coordinator_not_available
        assert not stopping.done()
        world.replicas.gate.set()
        await committing
        await stopping
        await world.restart()
        assert (committed(world, "g"), committed(world, "h")) == ({T0: 2}, {T0: 1})
        await world.groups.stop()

    asyncio.run(scenario())
