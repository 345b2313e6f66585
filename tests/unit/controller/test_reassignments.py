"""The controller's answers to AlterPartitionReassignments, and reassignments that end by themselves."""

from __future__ import annotations

import uuid

import pytest

from headwater.logtier.controller.alter_partition import PartitionAlteration, plan_alter_partitions
from headwater.logtier.controller.elections import plan_lower_min_isr
from headwater.logtier.controller.reassignments import WantedReplicas, plan_completions, plan_reassignments
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.store import Operation, SetData
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage, Reassignment, chunk_path, encode_chunk
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.topic_images import topic_changes
from tests.unit.controller.fake_brokers import FakeBrokers, without

FIRST = TopicPartition("t", 0)
TOPIC_ID = uuid.UUID(int=5)
FULL = PartitionImage(leader=1, leader_epoch=5, partition_epoch=7, replicas=(1, 2, 3), isr=(1, 2, 3))
#: Brokers 4 and 5 are not in sync yet.
MOVING = PartitionImage(1, 5, 8, (4, 5, 1, 2, 3), (1, 2, 3), reassignment=Reassignment((4, 5), (1, 2, 3), (1, 2, 3)))
#: Of the former replicas none is in sync any more.
TAKEN_OVER = PartitionImage(4, 6, 9, (4, 5, 1, 2, 3), (4,), reassignment=Reassignment((4, 5), (1, 2, 3), (1, 2, 3)))


def image_of(*partitions: PartitionImage) -> MetadataImage:
    changes = topic_changes("t", TOPIC_ID, [each.replicas for each in partitions])
    changes.append((chunk_path("t", 0), encode_chunk(partitions)))
    changes += [
        (paths.known_broker_path(broker), paths.encode_known_broker("h", 1, None, 1, is_alive=broker != 5))
        for broker in (1, 2, 3, 4, 5)
    ]
    return MetadataImage().apply(changes)


def after(image: MetadataImage, operations: list[Operation]) -> tuple[PartitionImage, ...]:
    changed = image.apply([(each.path, each.data) for each in operations if isinstance(each, SetData)])
    return changed.topics["t"].partitions


def ask(
    partition: PartitionImage,
    replicas: tuple[int, ...] | None,
    *,
    key: TopicPartition = FIRST,
    may_change_factor: bool = True,
) -> PartitionImage | ErrorCode:
    image = image_of(partition, FULL)
    plan = plan_reassignments(
        image, [WantedReplicas(key, replicas)], lambda _: 2, FakeBrokers(), may_change_factor=may_change_factor
    )
    [result] = plan.results
    assert result.topic_partition == key
    state, other = after(image, plan.operations)
    assert other == FULL
    if result.error is not None:
        assert not plan.operations
        assert result.error.message
        return ErrorCode(result.error.code)
    return state


def test_a_reassignment_begins_and_is_repeated_without_a_change() -> None:
    begun = ask(FULL, (4, 5))
    assert begun == MOVING
    assert ask(MOVING, (4, 5)) == MOVING


def test_a_cancellation_goes_back_to_the_former_replicas() -> None:
    assert ask(MOVING, None) == PartitionImage(1, 6, 9, (1, 2, 3), (1, 2, 3))


def test_a_reassignment_is_replaced() -> None:
    state = ask(MOVING, (4, 1, 2))
    assert isinstance(state, PartitionImage)
    assert (state.replicas, state.reassignment) == ((4, 1, 2, 3), Reassignment((4,), (3,), (1, 2, 3)))


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ((), ErrorCode.invalid_replica_assignment),
        ((1, 6), ErrorCode.invalid_replica_assignment),
        ((1, -1), ErrorCode.invalid_replica_assignment),
        ((1, 2, 1), ErrorCode.invalid_replica_assignment),
        (None, ErrorCode.no_reassignment_in_progress),
    ],
    ids=["none", "unknown", "negative", "twice", "nothing to cancel"],
)
def test_what_cannot_be_is_refused(replicas: tuple[int, ...] | None, code: ErrorCode) -> None:
    assert ask(FULL, replicas) is code


def test_a_known_broker_that_is_away_is_waited_for() -> None:
    state = ask(FULL, (1, 2, 5))
    assert isinstance(state, PartitionImage)
    assert state.reassignment is not None


def test_partitions_that_do_not_exist_are_refused() -> None:
    assert ask(FULL, (1,), key=TopicPartition("u", 0)) is ErrorCode.unknown_topic_or_partition
    assert ask(FULL, None, key=TopicPartition("t", 2)) is ErrorCode.unknown_topic_or_partition
    assert ask(FULL, (1,), key=TopicPartition("t", -1)) is ErrorCode.unknown_topic_or_partition


def test_the_replication_factor_is_kept_if_asked_for() -> None:
    """KIP-860: of a partition that is being reassigned, that of the target."""
    assert ask(FULL, (4, 5), may_change_factor=False) is ErrorCode.invalid_replication_factor
    assert isinstance(ask(FULL, (4, 5, 1), may_change_factor=False), PartitionImage)
    assert ask(MOVING, (1, 2, 3), may_change_factor=False) is ErrorCode.invalid_replication_factor
    assert isinstance(ask(MOVING, (1, 2), may_change_factor=False), PartitionImage)


def test_a_cancellation_that_could_lose_records_is_refused() -> None:
    assert ask(TAKEN_OVER, None) is ErrorCode.invalid_replica_assignment


def test_each_partition_is_decided_separately_in_one_change() -> None:
    image = image_of(FULL, FULL)
    asked = [
        WantedReplicas(TopicPartition("t", 0), (4, 5)),
        WantedReplicas(TopicPartition("t", 1), (9,)),
        WantedReplicas(TopicPartition("t", 1), (3, 2, 1)),
    ]
    plan = plan_reassignments(image, asked, lambda _: 2, FakeBrokers())
    assert [result.error and result.error.code for result in plan.results] == [
        None,
        ErrorCode.invalid_replica_assignment,
        None,
    ]
    assert len(plan.operations) == 1
    assert [each.replicas for each in after(image, plan.operations)] == [(4, 5, 1, 2, 3), (3, 2, 1)]


def test_the_isr_change_that_brings_the_last_replica_ends_the_reassignment_and_moves_the_leader() -> None:
    """KAFKA-9212: the epochs of the state are stored in the same change, so that no metadata have an older one."""
    image = image_of(MOVING, FULL)
    isr = ((1, -1), (2, -1), (3, -1), (4, -1), (5, -1))
    asked = PartitionAlteration(TOPIC_ID, 0, leader_epoch=5, partition_epoch=8, isr=isr)
    plan = plan_alter_partitions(image, 1, [asked], lambda _: 2, FakeBrokers())
    [result] = plan.results
    assert (result.error_code, result.state) == (ErrorCode.new_leader_elected, None)
    state, _ = after(image, plan.operations)
    assert state == PartitionImage(4, 6, 9, (4, 5), (4, 5))


def test_a_leader_that_stays_waits_for_the_epoch_without_the_removed_replicas() -> None:
    moving = PartitionImage(1, 5, 8, (1, 4, 2, 3), (1, 2, 3), reassignment=Reassignment((4,), (2, 3), (1, 2, 3)))
    asked = PartitionAlteration(TOPIC_ID, 0, 5, 8, ((1, -1), (2, -1), (3, -1), (4, -1)))
    image = image_of(moving)
    plan = plan_alter_partitions(image, 1, [asked], lambda _: 2, FakeBrokers())
    assert [result.error_code for result in plan.results] == [ErrorCode.new_leader_elected]
    assert after(image, plan.operations) == (PartitionImage(1, 6, 9, (1, 4), (1, 4)),)


def test_a_leader_is_told_the_isr_that_ends_a_reassignment_which_only_adds() -> None:
    growing = PartitionImage(1, 5, 8, (1, 4), (1,), reassignment=Reassignment((4,), (), (1,)))
    asked = PartitionAlteration(TOPIC_ID, 0, 5, 8, ((1, -1), (4, -1)))
    [result] = plan_alter_partitions(image_of(growing), 1, [asked], lambda _: 2, FakeBrokers()).results
    assert result.state == PartitionImage(1, 5, 9, (1, 4), (1, 4))


def test_a_reassignment_that_waited_for_a_broker_ends_when_the_broker_is_back() -> None:
    waiting = PartitionImage(1, 5, 9, (4, 1), (4, 1), reassignment=Reassignment((4,), (1,), (1,)))
    image = image_of(waiting, FULL)
    assert plan_completions(image, without(4), lambda _: 1) == []
    assert after(image, plan_completions(image, FakeBrokers(), lambda _: 1)) == (
        PartitionImage(4, 6, 10, (4,), (4,)),
        FULL,
    )


def test_a_reassignment_that_waited_for_the_minimum_isr_ends_when_the_minimum_is_lowered() -> None:
    waiting = PartitionImage(1, 5, 9, (1, 2, 3), (1, 3), reassignment=Reassignment((), (3,), (1, 2, 3)))
    image = image_of(waiting)
    assert plan_completions(image, FakeBrokers(), lambda _: 2) == []
    assert after(image, plan_lower_min_isr(image, lambda _: 1)) == (PartitionImage(1, 6, 10, (1, 2), (1,)),)


def test_a_partition_without_a_leader_can_be_cancelled_unless_an_added_replica_may_lead_it() -> None:
    change = Reassignment((4,), (), (1,))
    lost = PartitionImage(NO_BROKER, 6, 9, (1, 4), (), elr=(1,), last_known_leader=1, reassignment=change)
    cancelled = ask(lost, None)
    assert cancelled == PartitionImage(NO_BROKER, 7, 10, (1,), (), elr=(1,), last_known_leader=1)
    taken = PartitionImage(NO_BROKER, 6, 9, (1, 4), (), elr=(4,), last_known_leader=4, reassignment=change)
    assert ask(taken, None) is ErrorCode.invalid_replica_assignment
