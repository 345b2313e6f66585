"""What expires and when, and which write of an offset counts."""

from __future__ import annotations

import pytest

from headwater.logtier.group.classic.core import GroupLimits
from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.events import GroupMetadata, GroupState, Join, MemberMetadata
from headwater.logtier.group.persistence.offsets import CommittedOffset, GroupOffsets, expired_offsets
from headwater.logtier.protocol.topic_partition import TopicPartition

ONE, TWO = TopicPartition("one", 0), TopicPartition("two", 0)
SUBSCRIBED_TO_ONE = bytes.fromhex("0000 00000001 0003 6f6e65 ffffffff")
SUBSCRIBED_TO_THREE = bytes.fromhex("0000 00000001 0005 7468726565 ffffffff")


def group_of(protocol_type: str, *subscriptions: bytes, empty_since_ms: int = -1) -> Group:
    group = Group("g", GroupLimits())
    members = tuple(
        MemberMetadata(f"m{i}", None, "c", "/h", 1000, 1000, each, b"") for i, each in enumerate(subscriptions)
    )
    group.restore(GroupMetadata(protocol_type, 1, "range", "m0" if members else None, members, empty_since_ms), 0)
    return group


def offsets_at(**commit_times: int) -> GroupOffsets:
    offsets = GroupOffsets()
    for log_offset, (topic, time_ms) in enumerate(commit_times.items()):
        offsets.put(TopicPartition(topic, 0), CommittedOffset(1, commit_timestamp_ms=time_ms), log_offset)
    return offsets


def test_an_empty_group_keeps_its_offsets_for_the_retention_after_it_became_empty() -> None:
    group, offsets = group_of("consumer", empty_since_ms=1000), offsets_at(one=10, two=900)
    assert expired_offsets(group, offsets, 1099, 100) == []
    assert expired_offsets(group, offsets, 1100, 100) == [ONE, TWO]


def test_offsets_without_group_management_go_by_their_own_age() -> None:
    group, offsets = Group("g", GroupLimits()), offsets_at(one=10, two=900)
    assert expired_offsets(group, offsets, 950, 100) == [ONE]


def test_consumers_at_work_keep_the_offsets_of_what_they_subscribe_to() -> None:
    group, offsets = group_of("consumer", SUBSCRIBED_TO_ONE), offsets_at(one=10, two=10)
    assert expired_offsets(group, offsets, 10_000, 100) == [TWO]


@pytest.mark.parametrize("group", [group_of("connect", b"x"), group_of("consumer", b"\xff unreadable")])
def test_a_group_whose_topics_are_not_known_keeps_everything(group: Group) -> None:
    assert expired_offsets(group, offsets_at(one=10), 10_000, 100) == []


def test_kafka_13636_no_offset_expires_in_a_rebalance() -> None:
    """The subscriptions of the next generation are not known yet, or not those that members work with."""
    group, offsets = group_of("consumer", SUBSCRIBED_TO_ONE, SUBSCRIBED_TO_ONE), offsets_at(one=10, two=10)
    assert expired_offsets(group, offsets, 10_000, 100) == [TWO]
    for member_id, state in (("m0", GroupState.PREPARING_REBALANCE), ("m1", GroupState.COMPLETING_REBALANCE)):
        protocols = (("range", SUBSCRIBED_TO_THREE),)
        group.join(Join(0, member_id, "", None, "c", "/h", 1000, 1000, "consumer", protocols), 0)
        assert group.state is state
        assert expired_offsets(group, offsets, 10_000, 100) == []


def test_a_retention_of_the_clients_own_counts_first() -> None:
    offsets = GroupOffsets()
    offsets.put(ONE, CommittedOffset(1, commit_timestamp_ms=0, expire_timestamp_ms=500), 0)
    group = Group("g", GroupLimits())
    assert expired_offsets(group, offsets, 499, 100) == []
    assert expired_offsets(group, offsets, 500, 100_000) == [ONE]


def test_a_write_that_completes_late_does_not_undo_a_later_one() -> None:
    offsets = GroupOffsets()
    offsets.put(ONE, CommittedOffset(20), log_offset=5)
    offsets.put(ONE, CommittedOffset(10), log_offset=4)
    found = offsets.get(ONE)
    assert found is not None
    assert found.offset == 20
    offsets.remove([ONE], log_offset=4)
    assert ONE in offsets
    offsets.remove([ONE, TWO], log_offset=6)
    assert not offsets
