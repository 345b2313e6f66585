"""Topics that are not in the image: which offsets they cost, and why a coordinator has all that exist in its image."""

from __future__ import annotations

import asyncio

from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.state_topic.topic import partition_for
from tests.unit.group.test_coordinator import T0, MakeWorld, Settled, begin, commit, committed, error_of


def test_offsets_of_a_topic_that_is_missing_and_was_not_deleted_remain(make_world: MakeWorld, settled: Settled) -> None:
    """Its nodes may be lost, and come back; an entry of the metadata tells which topics were deleted."""

    async def scenario() -> None:
        world = await begin(make_world)
        topic = world.metadata.image.topic("t")
        key = {"member_id": "", "group_instance_id": None, "generation_id": -1}
        await world.groups.commit_offsets("g", commits={T0: CommittedOffset(5, topic_id=topic.topic_id)}, **key)
        world.metadata.lose("t")
        await settled()
        assert committed(world, "g") == {T0: 5}
        await world.restart()
        assert committed(world, "g") == {T0: 5}
        world.metadata.set_topics({**world.metadata.image.topics, "t": topic})
        world.metadata.remove("t")
        await settled()
        assert committed(world, "g") == {}
        await world.groups.stop()

    asyncio.run(scenario())


def test_an_offset_of_a_topic_that_is_newer_than_the_next_election_is_not_committed(
    make_world: MakeWorld, settled: Settled
) -> None:
    """The next coordinator of the group may load by an image without the topic, and would take it for a deleted one.

    This one has the image already, and has not heard of the election.
    """

    async def scenario() -> None:
        world = await begin(make_world)
        await commit(world, "g", {T0: 1})
        writes = world.replicas.writes
        subscribers, world.metadata.subscribers = world.metadata.subscribers, []
        world.metadata.move(OFFSETS_TOPIC, partition_for("g", 4), leader=2, leader_epoch=9)
        world.metadata.add("newer")
        assert await error_of(commit(world, "g", {TopicPartition("newer", 0): 1})) is ErrorCode.not_coordinator
        assert world.replicas.writes == writes
        world.metadata.subscribers = subscribers
        await world.groups.stop()

    asyncio.run(scenario())


def test_a_group_is_loaded_by_an_image_that_has_the_topics_of_its_commits(
    make_world: MakeWorld, settled: Settled
) -> None:
    """The election of the next coordinator is a later change than the topic: one that is behind loads nothing yet."""

    async def scenario() -> None:
        before = await begin(make_world)
        index = partition_for("g", 4)
        world = make_world()
        world.replicas.logs, world.replicas.elsewhere = before.replicas.logs, {index}
        world.metadata.image = before.metadata.image
        # The other coordinator's broker goes on; this one is behind by two changes.
        before.metadata.add("newer")
        newer = before.metadata.image.topic("newer")
        key = {"member_id": "", "group_instance_id": None, "generation_id": -1}
        commits = {TopicPartition("newer", 0): CommittedOffset(7, topic_id=newer.topic_id)}
        await before.groups.commit_offsets("g", commits=commits, **key)
        await world.groups.start()
        await settled()
        assert await error_of(commit(world, "g", {T0: 1})) is ErrorCode.not_coordinator
        world.metadata.set_topics(dict(before.metadata.image.topics))
        world.replicas.elsewhere = set()
        world.metadata.move(OFFSETS_TOPIC, index, leader=1, leader_epoch=9)
        await settled()
        assert committed(world, "g") == {TopicPartition("newer", 0): 7}
        await before.groups.stop()
        await world.groups.stop()

    asyncio.run(scenario())
