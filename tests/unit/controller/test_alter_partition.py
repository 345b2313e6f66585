"""The checks of AlterPartition, in Kafka's order, and what a leader gets back."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from headwater.logtier.controller.alter_partition import (
    AlterationResult,
    PartitionAlteration,
    plan_alter_partitions,
)
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.store import SetData
from headwater.logtier.metadata.topic_nodes import PartitionImage, chunk_path, decode_chunk, encode_chunk
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.replication.follower_state import UNKNOWN_BROKER_EPOCH
from tests.topic_images import topic_changes
from tests.unit.controller.fake_brokers import IDS, FakeBrokers

TOPIC_ID = uuid.UUID(int=5)
LED = PartitionImage(leader=1, leader_epoch=5, partition_epoch=7, replicas=(1, 2, 3), isr=(1, 2))
ASKED = PartitionAlteration(TOPIC_ID, 0, leader_epoch=5, partition_epoch=7, isr=((1, 11), (2, 12), (3, 13)))


class Members(FakeBrokers):
    """Brokers in the epochs 11 to 15."""

    def may_join(self, broker_id: int, broker_epoch: int, directory: str) -> bool:
        is_known = broker_epoch in (UNKNOWN_BROKER_EPOCH, 10 + broker_id)
        return is_known and super().may_join(broker_id, broker_epoch, directory)


def image_of(partition: PartitionImage) -> MetadataImage:
    changes = topic_changes("t", TOPIC_ID, [(1, 2, 3), (1, 2, 3)])
    other = PartitionImage(leader=2, leader_epoch=1, partition_epoch=1, replicas=(1, 2, 3), isr=(1, 2, 3))
    return MetadataImage().apply([*changes, (chunk_path("t", 0), encode_chunk([partition, other]))])


def alter(
    asked: PartitionAlteration = ASKED,
    partition: PartitionImage = LED,
    *,
    sender: int = 1,
    away: set[int] | None = None,
    min_isr: int = 2,
) -> AlterationResult:
    image = image_of(partition)
    plan = plan_alter_partitions(image, sender, [asked], lambda _: min_isr, Members({*IDS} - (away or set())))
    (result,) = plan.results
    if result.state is None or result.state == partition:
        assert plan.operations == []
    else:
        (operation,) = plan.operations
        assert isinstance(operation, SetData)
        assert decode_chunk(operation.path, operation.data) == (result.state, image.topics["t"].partitions[1])
    return result


def test_a_follower_joins_and_the_partition_epoch_grows() -> None:
    assert alter().state == PartitionImage(1, 5, 8, (1, 2, 3), (1, 2, 3))


def test_members_are_in_the_order_of_the_assignment() -> None:
    result = alter(replace(ASKED, isr=((3, 13), (1, 11))))
    assert result.state is not None
    assert result.state.isr == (1, 3)


def test_a_leader_that_shrinks_below_the_minimum_leaves_eligible_replicas() -> None:
    state = alter(replace(ASKED, isr=((1, 11),))).state
    assert state is not None
    assert (state.isr, state.elr) == ((1,), (2,))


def test_what_is_already_so_is_answered_with_the_present_state_whatever_the_partition_epoch() -> None:
    """A request that was executed, and whose answer was lost."""
    result = alter(replace(ASKED, isr=((1, 11), (2, 12)), partition_epoch=6))
    assert (result.error_code, result.state) == (ErrorCode.none, LED)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (replace(ASKED, topic_id=uuid.UUID(int=6)), ErrorCode.unknown_topic_id),
        (replace(ASKED, partition=2), ErrorCode.unknown_topic_or_partition),
        (replace(ASKED, partition=-1), ErrorCode.unknown_topic_or_partition),
        # This controller is behind what the leader knows: it has been deposed.
        (replace(ASKED, leader_epoch=6), ErrorCode.not_controller),
        (replace(ASKED, partition_epoch=8), ErrorCode.not_controller),
        (replace(ASKED, leader_epoch=4, partition_epoch=8), ErrorCode.not_controller),
        (replace(ASKED, leader_epoch=4), ErrorCode.fenced_leader_epoch),
        (replace(ASKED, leader_epoch=4, isr=((9, 1),)), ErrorCode.fenced_leader_epoch),
        (replace(ASKED, isr=((1, 11), (9, 1))), ErrorCode.invalid_request),
        (replace(ASKED, isr=((2, 12), (3, 13))), ErrorCode.invalid_request),
        (replace(ASKED, isr=()), ErrorCode.invalid_request),
        (replace(ASKED, isr=((1, 11),), is_recovering=True), ErrorCode.invalid_request),
        (replace(ASKED, partition_epoch=6), ErrorCode.invalid_update_version),
        (replace(ASKED, isr=((1, 11), (2, 12), (3, 12))), ErrorCode.ineligible_replica),
    ],
)
def test_the_first_fault_in_kafkas_order_is_the_answer(asked: PartitionAlteration, code: ErrorCode) -> None:
    assert alter(asked).error_code is code


def test_only_the_leader_may_ask() -> None:
    assert alter(sender=2).error_code is ErrorCode.invalid_request


def test_a_replica_that_is_shutting_down_does_not_rejoin() -> None:
    """KAFKA-14140."""
    assert alter(away={3}).error_code is ErrorCode.ineligible_replica


def test_a_member_of_an_earlier_broker_epoch_does_not_join() -> None:
    """KIP-903: it has returned since, perhaps without the end of its log."""
    assert alter(replace(ASKED, isr=((1, 11), (2, 12), (3, 3)))).error_code is ErrorCode.ineligible_replica


def test_a_leader_that_recovers_is_alone_until_it_has_recovered() -> None:
    """KIP-704."""
    recovering = replace(LED, isr=(1,), is_recovering=True)
    two = replace(ASKED, isr=((1, 11), (2, 12)), is_recovering=True)
    assert alter(two, recovering).error_code is ErrorCode.invalid_request
    done = alter(replace(ASKED, isr=((1, 11),)), recovering).state
    assert done is not None
    assert not done.is_recovering
    assert done.partition_epoch == 8


def test_two_changes_of_one_partition_in_one_request_follow_each_other() -> None:
    image = image_of(LED)
    second = replace(ASKED, partition_epoch=8, isr=((1, 11), (2, 12)))
    plan = plan_alter_partitions(image, 1, [ASKED, second], lambda _: 2, Members())
    assert [result.state and result.state.partition_epoch for result in plan.results] == [8, 9]
    assert [operation.path for operation in plan.operations] == [chunk_path("t", 0)]
