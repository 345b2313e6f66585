"""Elections that an administrator asks for, and the leaderships of a broker that shuts down."""

from __future__ import annotations

import uuid

import pytest

from headwater.logtier.controller.leader_elections import plan_elect_leaders, plan_giving_way
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.store import Operation, SetData
from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage, chunk_path, encode_chunk
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.topic_images import topic_changes
from tests.unit.controller.fake_brokers import FakeBrokers, without

REPLICAS = (1, 2, 3)
MOVED = PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=REPLICAS, isr=REPLICAS)
PREFERRED = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=REPLICAS, isr=REPLICAS)
BEHIND = PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=REPLICAS, isr=(2, 3))
LOST = PartitionImage(
    leader=NO_BROKER, leader_epoch=4, partition_epoch=9, replicas=REPLICAS, isr=(3,), last_known_leader=3
)


def image_of(*partitions: PartitionImage, topic: str = "t") -> MetadataImage:
    changes = topic_changes(topic, uuid.UUID(int=5), [each.replicas for each in partitions])
    return MetadataImage().apply([*changes, (chunk_path(topic, 0), encode_chunk(partitions))])


def after(image: MetadataImage, operations: list[Operation]) -> tuple[PartitionImage, ...]:
    changed = image.apply([(each.path, each.data) for each in operations if isinstance(each, SetData)])
    (topic,) = changed.topics.values()
    return topic.partitions


@pytest.mark.parametrize(
    ("partition", "away", "is_unclean", "outcome"),
    [
        (MOVED, set(), False, 1),
        (PREFERRED, set(), False, ErrorCode.election_not_needed),
        (BEHIND, set(), False, ErrorCode.preferred_leader_not_available),
        (MOVED, {1}, False, ErrorCode.preferred_leader_not_available),
        (LOST, {3}, False, ErrorCode.preferred_leader_not_available),
        (MOVED, set(), True, ErrorCode.election_not_needed),
        (LOST, {3}, True, 1),
        (LOST, {1, 3}, True, 2),
        (LOST, set(), True, 3),
        (LOST, {1, 2, 3}, True, ErrorCode.eligible_leaders_not_available),
    ],
    ids=[
        "preferred",
        "preferred leads",
        "preferred out of the ISR",
        "preferred away",
        "preferred is not elected uncleanly",
        "unclean with a leader",
        "unclean",
        "unclean, the next one",
        "clean if possible",
        "nobody there",
    ],
)
def test_an_election_of_one_partition(
    partition: PartitionImage, away: set[int], is_unclean: bool, outcome: int | ErrorCode
) -> None:
    image = image_of(PREFERRED, partition)
    key = TopicPartition("t", 1)
    plan = plan_elect_leaders(image, [key], lambda _: 2, without(*away), is_unclean=is_unclean)
    (result,) = plan.results
    assert result.topic_partition == key
    if isinstance(outcome, ErrorCode):
        assert result.error is not None
        assert result.error.code is outcome
        assert plan.operations == []
        return
    assert result.error is None
    other, elected = after(image, plan.operations)
    assert other == PREFERRED
    assert (elected.leader, elected.leader_epoch, elected.partition_epoch) == (outcome, 5, 10)
    assert elected.is_recovering == (outcome != 3 and partition is LOST)


def test_of_all_partitions_only_those_are_answered_that_needed_an_election() -> None:
    image = image_of(PREFERRED, MOVED, BEHIND)
    plan = plan_elect_leaders(image, None, lambda _: 2, FakeBrokers(), is_unclean=False)
    codes = {result.topic_partition.partition: result.error and result.error.code for result in plan.results}
    assert codes == {1: None, 2: ErrorCode.preferred_leader_not_available}
    assert [each.leader for each in after(image, plan.operations)] == [1, 1, 2]
    assert len(plan.operations) == 1


def test_what_does_not_exist_is_said_so() -> None:
    asked = [TopicPartition("u", 0), TopicPartition("t", 1), TopicPartition("t", -1), TopicPartition("t", 1)]
    plan = plan_elect_leaders(image_of(PREFERRED), asked, lambda _: 2, FakeBrokers(), is_unclean=False)
    assert [(each.topic_partition, each.error and each.error.code) for each in plan.results] == [
        (key, ErrorCode.unknown_topic_or_partition) for key in dict.fromkeys(asked)
    ]


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_the_partitions_of_coordinators_move_like_all_others(topic: str) -> None:
    image = image_of(MOVED, topic=topic)
    plan = plan_elect_leaders(image, None, lambda _: 2, FakeBrokers(), is_unclean=False)
    assert [each.leader for each in after(image, plan.operations)] == [1]
    given = plan_giving_way(image, 2, lambda _: 2, without(2))
    assert [each.leader for each in after(image, given.operations)] == [1]
    lost = image_of(LOST, topic=topic)
    plan = plan_elect_leaders(lost, [TopicPartition(topic, 0)], lambda _: 2, without(3), is_unclean=True)
    assert [each.leader for each in after(lost, plan.operations)] == [1]


def test_a_broker_that_shuts_down_gives_its_leaderships_to_the_isr_and_leaves_it() -> None:
    alone = PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=(2, 3), isr=(2,))
    image = image_of(PREFERRED, MOVED, BEHIND, alone)
    plan = plan_giving_way(image, 2, lambda _: 2, without(2))
    # Broker 3 is alive and may catch up.
    assert plan.results == [TopicPartition("t", 3)]
    states = after(image, plan.operations)
    assert [(each.leader, each.leader_epoch, each.isr) for each in states] == [
        (1, 4, (1, 3)),
        (1, 5, (1, 3)),
        (3, 5, (3,)),
        (2, 4, (2,)),
    ]
    # Below the minimum the broker stays eligible: it has every committed record.
    assert states[2].elr == (2,)
    # Without broker 3 nobody is left for the last one, and broker 1 for the one before it.
    assert plan_giving_way(image, 2, lambda _: 2, without(2, 3)).results == [TopicPartition("t", 2)]
