"""Requests that waited for their group's turn while its partition went to another broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater.logtier.group.consumer.consumer_step import Heartbeat
from headwater.logtier.group.events import LeavingMember, Sync
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.state_topic.topic import partition_for
from tests.unit.group.conftest import World
from tests.unit.state_topic.surroundings import settle

GROUP = "g"
#: Others of its partition.
GROUP_BESIDE, GROUP_WRITTEN = (name for name in map(str, range(9)) if partition_for(name, 4) == partition_for(GROUP, 4))


async def heartbeat(world: World, member_id: str, epoch: int) -> ErrorCode:
    beat = Heartbeat(member_id, epoch, "c", "/h", None, rebalance_timeout_ms=60_000, topic_names=frozenset({"t"}))
    beat = Heartbeat(member_id, epoch, "c", "/h") if epoch else beat
    try:
        await world.groups.consumer_heartbeat(GROUP, beat)
    except KafkaError as error:
        return error.code
    return ErrorCode.none


async def sync(world: World, _: Any) -> ErrorCode:
    request = Sync(token=0, member_id="m", group_instance_id=None, generation_id=1)
    answer = await world.groups.sync(GROUP, request)
    return answer.error


async def join(world: World, _: Any) -> ErrorCode:
    return (await world.join(GROUP)).error  # type: ignore[no-any-return]


async def leave(world: World, _: Any) -> ErrorCode:
    try:
        [error] = await world.groups.leave(GROUP, [LeavingMember("m", None)])
    except KafkaError as refusal:
        return refusal.code
    return error


async def beat(world: World, epoch: int) -> ErrorCode:
    return await heartbeat(world, "a", epoch)


async def go(world: World, _: Any) -> ErrorCode:
    return await heartbeat(world, "a", -1)


@pytest.mark.parametrize("ask", [beat, go, sync, join, leave])
def test_they_are_told_to_look_for_the_coordinator_and_make_no_group_here(
    ask: Callable[[World, int], Awaitable[ErrorCode]],
) -> None:
    async def scenario() -> None:
        world = World()
        await world.groups.start()
        world.metadata.add("t")
        await world.groups.find(GROUP)
        await settle()
        assert await heartbeat(world, "a", 0) is ErrorCode.none
        world.replicas.gate = asyncio.Event()
        # One step is being written: the next request waits for it.
        stepping = asyncio.create_task(heartbeat(world, "b", 0))
        await settle()
        asking = asyncio.ensure_future(ask(world, 1))
        await settle()
        assert not asking.done()
        index = partition_for(GROUP, 4)
        world.replicas.elsewhere = {index}
        world.metadata.move(OFFSETS_TOPIC, index, leader=2, leader_epoch=1)
        async with asyncio.timeout(5):
            assert await stepping is ErrorCode.not_coordinator
            assert await asking is ErrorCode.not_coordinator
        assert world.groups.groups() == []
        world.replicas.gate.set()
        await world.groups.stop()

    asyncio.run(scenario())


def test_a_join_for_which_an_empty_consumer_group_was_deleted_makes_no_group_here() -> None:
    async def scenario() -> None:
        world = World()
        await world.groups.start()
        world.metadata.add("t")
        await world.groups.find(GROUP)
        await settle()
        assert await heartbeat(world, "a", 0) is ErrorCode.none
        assert await heartbeat(world, "a", -1) is ErrorCode.none
        world.replicas.gate = asyncio.Event()
        joining = asyncio.ensure_future(join(world, None))
        await settle()
        world.replicas.gate.set()
        async with asyncio.timeout(5):
            while GROUP in world.groups._groups:  # noqa: ASYNC110 (turn by turn)
                await asyncio.sleep(0)
            # The tombstones are written, and the join has not had its turn yet.
            assert not joining.done()
            index = partition_for(GROUP, 4)
            world.replicas.elsewhere = {index}
            world.metadata.move(OFFSETS_TOPIC, index, leader=2, leader_epoch=1)
            world.groups.leadership_changed()
            assert await joining is ErrorCode.not_coordinator
        assert world.groups.groups() == []
        await world.groups.stop()

    asyncio.run(scenario())


def test_a_follower_of_a_classic_group_that_waits_for_its_leaders_sync_is_told_too() -> None:
    """So are a member that waits for the others to join, and one whose assignment is being written."""

    async def scenario() -> None:
        world = World()
        await world.groups.start()
        await world.groups.find(GROUP)
        await settle()
        first = asyncio.ensure_future(world.join(GROUP))
        await settle()
        leader = await first
        # The leader joins again when it hears of the second member.
        second = asyncio.ensure_future(world.join(GROUP))
        await settle()
        leader = await world.join(GROUP, member_id=leader.member_id)
        follower = await second
        assert (leader.generation_id, follower.generation_id, follower.leader) == (2, 2, leader.member_id)
        syncing = asyncio.ensure_future(world.sync(GROUP, follower))
        joining = asyncio.ensure_future(world.join(GROUP_BESIDE))
        await joining
        another = asyncio.ensure_future(world.join(GROUP_BESIDE))
        world.replicas.gate = asyncio.Event()
        written = await world.join(GROUP_WRITTEN)
        writing = asyncio.ensure_future(world.sync(GROUP_WRITTEN, written))
        await settle()
        assert not (syncing.done() or another.done() or writing.done())
        index = partition_for(GROUP, 4)
        world.replicas.elsewhere = {index}
        world.metadata.move(OFFSETS_TOPIC, index, leader=2, leader_epoch=1)
        async with asyncio.timeout(5):
            for waiting in (syncing, another, writing):
                assert (await waiting).error is ErrorCode.not_coordinator
        assert world.groups.groups() == []
        world.replicas.gate.set()
        await world.groups.stop()

    asyncio.run(scenario())
