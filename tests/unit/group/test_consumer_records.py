"""The records of consumer groups: Kafka's bytes, there and back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.group.consumer.consumer_member import ClassicProtocols, MemberState
from headwater.logtier.group.consumer.consumer_records import (
    ConsumerKey,
    CurrentValue,
    EpochValue,
    MemberValue,
    RecordKind,
    RegexValue,
    TargetEpochValue,
    TargetValue,
    consumer_key,
    consumer_value,
)
from headwater.logtier.group.consumer_protocol import encode_assignment, parse_assignment, parse_subscription
from headwater.logtier.group.persistence.records import parse_key, parse_value
from headwater.logtier.state_topic.record_codec import CorruptStateRecordError

texts = st.text(max_size=20)
epochs = st.integers(-2, 2**31 - 1)
partitions = st.dictionaries(st.uuids(), st.frozensets(st.integers(0, 2**31 - 1), min_size=1, max_size=4), max_size=3)
classics = st.builds(ClassicProtocols, epochs, st.lists(st.tuples(texts, st.binary(max_size=9)), max_size=3).map(tuple))
values: dict[RecordKind, st.SearchStrategy[Any]] = {
    RecordKind.EPOCH: st.builds(EpochValue, epochs, st.integers(-(2**63), 2**63 - 1)),
    RecordKind.MEMBER: st.builds(
        MemberValue,
        st.none() | texts,
        st.none() | texts,
        texts,
        texts,
        st.frozensets(texts, max_size=4),
        st.none() | texts.filter(bool),
        epochs,
        st.none() | texts,
        st.none() | classics,
    ),
    RecordKind.TARGET_EPOCH: st.builds(TargetEpochValue, epochs),
    RecordKind.TARGET: st.builds(TargetValue, partitions),
    RecordKind.CURRENT: st.builds(CurrentValue, epochs, epochs, st.sampled_from(MemberState), partitions, partitions),
    RecordKind.REGEX: st.builds(
        RegexValue, st.frozensets(texts, max_size=4), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)
    ),
}
NAMED = {RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT, RecordKind.REGEX}
records = st.sampled_from(sorted(values)).flatmap(
    lambda kind: st.tuples(
        st.builds(ConsumerKey, texts, st.just(kind), texts if kind in NAMED else st.just("")), values[kind]
    )
)


@given(record=records)
def test_a_record_comes_back(record: tuple[ConsumerKey, Any]) -> None:
    key, value = record
    assert parse_key(consumer_key(key)) == key
    assert parse_value(key, consumer_value(value)) == value


@given(record=records, data=st.data())
def test_a_damaged_value_is_told_or_another_value(record: tuple[ConsumerKey, Any], data: st.DataObject) -> None:
    key, value = record
    encoded = bytearray(consumer_value(value))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    try:
        parse_value(key, bytes(encoded[:cut]))
    except CorruptStateRecordError as error:
        assert key.kind.name in str(error)


# Read alike by Kafka 4.1.1's DumpLogSegments --offsets-decoder.
TOPIC = UUID(int=0x0102)
ONE = {TOPIC: frozenset({0, 1})}


@pytest.mark.parametrize(
    ("key", "value", "expected_key", "expected_value"),
    [
        (
            ConsumerKey("g", RecordKind.EPOCH),
            EpochValue(3, 1),
            "0003 0001 67",
            "0000 00000003 01 00 08 0000000000000001",
        ),
        (ConsumerKey("g", RecordKind.EPOCH), EpochValue(3), "0003 0001 67", "0000 00000003 00"),
        (
            ConsumerKey("g", RecordKind.MEMBER, "m"),
            MemberValue(None, "r", "c", "/h", frozenset({"t"}), None, 9, "range", ClassicProtocols(8, (("p", b"x"),))),
            "0005 0001 67 0001 6d",
            "0000 00 0272 0263 032f68 02 0274 01 00000009 0672616e6765 01 00 0c 01 00000008 02 0270 0278 00 00",
        ),
        (ConsumerKey("g", RecordKind.TARGET_EPOCH), TargetEpochValue(3), "0006 0001 67", "0000 00000003 00"),
        (
            ConsumerKey("g", RecordKind.TARGET, "m"),
            TargetValue(ONE),
            "0007 0001 67 0001 6d",
            f"0000 02 {TOPIC.hex} 03 00000000 00000001 00 00",
        ),
        (
            ConsumerKey("g", RecordKind.CURRENT, "m"),
            CurrentValue(3, 2, MemberState.UNREVOKED_PARTITIONS, ONE, {}),
            "0008 0001 67 0001 6d",
            f"0000 00000003 00000002 01 02 {TOPIC.hex} 03 00000000 00000001 00 01 00",
        ),
        (
            ConsumerKey("g", RecordKind.REGEX, "t.*"),
            RegexValue(frozenset({"t"}), 0, 5),
            "0010 0001 67 0003 742e2a",
            "0000 02 0274 0000000000000000 0000000000000005 00",
        ),
    ],
)
def test_the_bytes_are_kafkas(key: ConsumerKey, value: Any, expected_key: str, expected_value: str) -> None:
    assert consumer_key(key) == bytes.fromhex(expected_key)
    assert consumer_value(value) == bytes.fromhex(expected_value)


def test_what_earlier_versions_wrote_about_topics_is_passed_over() -> None:
    key = parse_key(bytes.fromhex("0004 0001 67"))
    assert key == ConsumerKey("g", RecordKind.TOPIC_METADATA)
    assert parse_value(ConsumerKey("g", RecordKind.TOPIC_METADATA), bytes.fromhex("0000 01 00")) is None


def test_a_state_of_a_later_version_is_unknown() -> None:
    data = bytes.fromhex("0000 00000003 00000002 09 01 01 00")
    value = parse_value(ConsumerKey("g", RecordKind.CURRENT, "m"), data)
    assert isinstance(value, CurrentValue)
    assert value.state is MemberState.UNKNOWN


@given(by_name=st.dictionaries(texts, st.frozensets(st.integers(0, 99), min_size=1), max_size=3))
def test_an_assignment_of_the_classic_protocol_comes_back(by_name: dict[str, frozenset[int]]) -> None:
    assert parse_assignment(encode_assignment(3, by_name)) == (by_name, False)


def test_a_subscription_of_every_version_is_read() -> None:
    names = "00000001 0001 74 00000002 beef"
    owned = "00000001 0001 74 00000002 00000000 00000003"
    assert parse_subscription(bytes.fromhex(f"0000 {names}")).topics == {"t"}
    assert parse_subscription(bytes.fromhex(f"0001 {names} {owned}")).owned == {"t": {0, 3}}
    assert parse_subscription(bytes.fromhex(f"0002 {names} {owned} 00000007")).rack_id is None
    newest = parse_subscription(bytes.fromhex(f"0003 {names} {owned} 00000007 0002 6575"))
    assert (newest.version, newest.rack_id) == (3, "eu")
