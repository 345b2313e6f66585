"""The on-log formats, against bytes that Apache Kafka 4.1.1 wrote."""

from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.group.events import GroupMetadata, MemberMetadata
from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.group.persistence.records import (
    GroupKey,
    OffsetKey,
    group_key,
    group_value,
    offset_key,
    offset_value,
    parse_group_value,
    parse_key,
    parse_offset_value,
)
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.state_topic.record_codec import CorruptStateRecordError

KAFKA_GROUP_KEY = bytes.fromhex("0002000d67726f757068656c7065722d67")
KAFKA_EMPTY_GROUP = bytes.fromhex("00030008636f6e73756d657200000002ffffffff000001a1fd18f65f00000000")
KAFKA_STABLE_GROUP = bytes.fromhex(
    "00030008636f6e73756d657200000001000572616e6765003267726f757068656c7065722d632d35316632356232372d616231642d346566632d"
    "393261312d393833346637656562633331000001a1fd18f5d300000001003267726f757068656c7065722d632d35316632356232372d61623164"
    "2d346566632d393261312d393833346637656562633331ffff000d67726f757068656c7065722d63000a2f3132372e302e302e31000493e00000"
    "afc800000023000300000001000d67726f757068656c7065722d740000000000000000ffffffff000000000021000000000001000d67726f7570"
    "68656c7065722d74000000010000000000000000"
)
KAFKA_OFFSET_KEY = bytes.fromhex("0001000d67726f757068656c7065722d67000d67726f757068656c7065722d7400000000")
KAFKA_OFFSET = bytes.fromhex("000400000000000000010000000001000001a1fd18f64d00")

names = st.text(max_size=40)
longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
offsets = st.builds(
    CommittedOffset,
    offset=longs,
    leader_epoch=ints,
    metadata=st.text(max_size=300),
    commit_timestamp_ms=longs,
    topic_id=st.none() | st.uuids(),
)
members = st.builds(
    MemberMetadata,
    names,
    st.none() | names,
    names,
    names,
    st.integers(0, 2**31 - 1),
    ints,
    st.binary(max_size=60),
    st.binary(max_size=60),
)
groups = st.builds(
    GroupMetadata, names, ints, st.none() | names, st.none() | names, st.lists(members, max_size=3).map(tuple), longs
)


def test_keys_are_kafkas() -> None:
    assert parse_key(KAFKA_GROUP_KEY) == GroupKey("grouphelper-g")
    assert group_key("grouphelper-g") == KAFKA_GROUP_KEY
    topic_partition = TopicPartition("grouphelper-t", 0)
    assert parse_key(KAFKA_OFFSET_KEY) == OffsetKey("grouphelper-g", topic_partition)
    assert offset_key("grouphelper-g", topic_partition) == KAFKA_OFFSET_KEY


def test_a_committed_offset_is_kafkas() -> None:
    committed = parse_offset_value(KAFKA_OFFSET)
    assert committed == CommittedOffset(1, 0, "", 1795247633997)
    assert offset_value(committed) == KAFKA_OFFSET


@pytest.mark.parametrize("data", [KAFKA_EMPTY_GROUP, KAFKA_STABLE_GROUP])
def test_a_groups_metadata_is_kafkas(data: bytes) -> None:
    assert group_value(parse_group_value(data)) == data


def test_a_stable_group_of_kafka_is_read() -> None:
    metadata = parse_group_value(KAFKA_STABLE_GROUP)
    assert (metadata.protocol_type, metadata.generation_id, metadata.protocol_name) == ("consumer", 1, "range")
    [member] = metadata.members
    assert member.member_id == metadata.leader
    assert (member.client_id, member.client_host) == ("grouphelper-c", "/127.0.0.1")
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (300_000, 45_000)


@given(offsets)
def test_a_committed_offset_comes_back(committed: CommittedOffset) -> None:
    assert parse_offset_value(offset_value(committed)) == committed


def test_a_retention_of_the_clients_own_comes_back() -> None:
    committed = CommittedOffset(7, metadata="m", commit_timestamp_ms=5, expire_timestamp_ms=9)
    assert parse_offset_value(offset_value(committed)) == committed
    assert offset_value(committed)[:2] == b"\0\1"


@pytest.mark.parametrize(
    ("data", "committed"),
    [
        ("0000 0000000000000007 0001 6d 0000000000000005", CommittedOffset(7, -1, "m", 5)),
        ("0002 0000000000000007 0001 6d 0000000000000005", CommittedOffset(7, -1, "m", 5)),
        ("0003 0000000000000007 00000002 0001 6d 0000000000000005", CommittedOffset(7, 2, "m", 5)),
        (
            "0004 0000000000000007 00000002 02 6d 0000000000000005 01 00 10 00000000000000000000000000000001",
            CommittedOffset(7, 2, "m", 5, topic_id=UUID(int=1)),
        ),
    ],
)
def test_offsets_of_other_versions_are_read(data: str, committed: CommittedOffset) -> None:
    assert parse_offset_value(bytes.fromhex(data)) == committed


def test_kafka_8069_an_offset_of_version_1_without_a_retention_of_its_own_has_none() -> None:
    """KAFKA-8069: its expire timestamp of -1 counted as long past, and the offset was deleted once it was loaded."""
    data = "0001 0000000000000007 0001 6d 0000000000000005 ffffffffffffffff"
    assert parse_offset_value(bytes.fromhex(data)) == CommittedOffset(7, -1, "m", 5)


def test_groups_of_the_first_version_are_read() -> None:
    data = bytes.fromhex(
        "0000 0001 63 00000002 0001 70 0001 6d 00000001 0001 6d 0001 69 0001 68 00000bb8 00000000 00000000"
    )
    member = MemberMetadata("m", None, "i", "h", 3000, 3000, b"", b"")
    assert parse_group_value(data) == GroupMetadata("c", 2, "p", "m", (member,), -1)


@given(groups)
def test_a_groups_metadata_comes_back(metadata: GroupMetadata) -> None:
    assert parse_group_value(group_value(metadata)) == metadata


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    for parse in (parse_key, parse_offset_value, parse_group_value):
        with contextlib.suppress(CorruptStateRecordError):
            parse(data)


def test_keys_of_newer_protocols_are_passed_over() -> None:
    assert parse_key(b"\0\x0b\0\1g") is None
