"""Looking through all groups, for offsets that have expired or whose topic is gone, lets others in."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from headwater.logtier.group.coordinator import GroupCoordinator
from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.state_topic.turns import STEPS_PER_TURN
from tests.unit.group.conftest import World
from tests.unit.state_topic.surroundings import settle

COUNT = 3 * STEPS_PER_TURN
KEY = TopicPartition("t", 0)


async def world_with_groups(count: int) -> World:
    world = World()
    world.metadata.add(OFFSETS_TOPIC, 4)
    world.metadata.add("t")
    await world.groups.start()
    await settle()
    for number in range(count):
        await world.groups.commit_offsets(
            f"g{number}",
            member_id="",
            group_instance_id=None,
            generation_id=-1,
            commits={KEY: CommittedOffset(1, commit_timestamp_ms=world.clock.now_ms())},
        )
    return world


async def expire(groups: GroupCoordinator, _: World) -> None:
    await groups.expire()


async def delete_topic(groups: GroupCoordinator, world: World) -> None:
    world.metadata.add("other")
    world.metadata.remove("other")
    await asyncio.wait([task for task in groups._tasks._tasks if "forget" in repr(task)])


def noted(looked_at: list[str], find: Callable[..., list[TopicPartition]]) -> Callable[..., list[TopicPartition]]:
    def find_and_note(group_id: str, *rest: int) -> list[TopicPartition]:
        looked_at.append(group_id)
        return find(group_id, *rest)

    return find_and_note


@pytest.mark.parametrize("look", [expire, delete_topic])
def test_others_have_turns(
    look: Callable[[GroupCoordinator, World], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = await world_with_groups(COUNT)
        groups = world.groups
        looked_at: list[str] = []
        for name in ("_expired", "_of_missing_topics"):
            monkeypatch.setattr(groups, name, noted(looked_at, getattr(groups, name)))
        looking = asyncio.ensure_future(look(groups, world))
        counts = [0]
        while not looking.done():
            await asyncio.sleep(0)
            counts.append(len(looked_at))
        assert len(looked_at) == COUNT
        assert max(later - earlier for earlier, later in itertools.pairwise(counts)) <= STEPS_PER_TURN
        await groups.stop()

    asyncio.run(scenario())


def test_topics_that_are_deleted_one_after_the_other_are_looked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = await world_with_groups(10)
        groups = world.groups
        looks = 0
        find = groups._of_missing_topics

        def counted(group_id: str) -> list[TopicPartition]:
            nonlocal looks
            looks += 1
            return find(group_id)

        monkeypatch.setattr(groups, "_of_missing_topics", counted)
        for number in range(50):
            world.metadata.add(f"u{number}")
        for number in range(50):
            world.metadata.remove(f"u{number}")
        await settle()
        assert looks == 10
        world.metadata.remove("t")
        await settle()
        assert [len(groups.committed(f"g{number}")) for number in range(10)] == [0] * 10
        await groups.stop()

    asyncio.run(scenario())
