"""The records of `__consumer_offsets`, in Kafka's own formats (its OffsetCommitKey/Value and GroupMetadataKey/Value).

Every key begins with an int16 version, which is also its kind:

- 0, 1: group, topic, partition -> a committed offset (values of versions 0 to 4 are read; 4 is written, and 1 for a
  commit with a retention of its own);
- 2: group -> the group's metadata (values of versions 0 to 4 are read, 3 is written);
- 3 to 8, 16: consumer groups (see `consumer_records`).

Kafka 4.1 writes the same formats: its tools read this log, and this broker reads Kafka's. A null value is a tombstone.
Keys of other versions (newer protocols) are ignored. Strings have int16 lengths, -1 is null; version 4 values are
flexible (KIP-482): unsigned varint lengths plus one, tagged fields at the end.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from headwater.logtier.group.consumer.consumer_records import (
    CONSUMER_KINDS,
    ConsumerKey,
    ConsumerValue,
    RecordKind,
    parse_consumer_key,
    parse_consumer_value,
)
from headwater.logtier.group.events import GroupMetadata, MemberMetadata
from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.protocol.wire import string, unsigned_varint
from headwater.logtier.state_topic.record_codec import CorruptStateRecordError, RecordReader

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OFFSET_V1_TAIL = struct.Struct(">qq")
_OFFSET_V4_HEAD = struct.Struct(">hqi")

_KEY_OFFSET = 1
_KEY_GROUP = 2
_OFFSET_VALUE = 4
_OFFSET_VALUE_WITH_EXPIRY = 1
_GROUP_VALUE = 3
_TAG_TOPIC_ID = 0

_VALUE_VERSION_MAX = 4
_VALUE_FLEXIBLE_FROM = 4


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Key of a committed offset."""

    group_id: str
    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Key of a group's metadata."""

    group_id: str


@lru_cache(maxsize=4096)
def offset_key(group_id: str, topic_partition: TopicPartition) -> bytes:
    """Encode the key of a committed offset; cached, because a group commits the same partitions repeatedly.

    >>> offset_key("g", TopicPartition("t", 3)).hex(" ")
    '00 01 00 01 67 00 01 74 00 00 00 03'
    """
    topic, partition = topic_partition
    return _INT16.pack(_KEY_OFFSET) + string(group_id) + string(topic) + _INT32.pack(partition)


def group_key(group_id: str) -> bytes:
    """Encode the key of a group's metadata."""
    return _INT16.pack(_KEY_GROUP) + string(group_id)


def parse_key(data: bytes) -> OffsetKey | GroupKey | ConsumerKey | None:
    """Decode a key; None for a protocol that this broker does not support.

    Raises:
        CorruptStateRecordError: if it is malformed.
    """
    reader = RecordReader(data)
    try:
        version = reader.int16()
        if version in (0, _KEY_OFFSET):
            return OffsetKey(reader.string(), TopicPartition(reader.string(), reader.int32()))
        if version in CONSUMER_KINDS:
            return parse_consumer_key(RecordKind(version), reader)
        return GroupKey(reader.string()) if version == _KEY_GROUP else None
    except (struct.error, ValueError) as error:
        raise CorruptStateRecordError(f"malformed key {data[:64].hex()}: {error}") from None


def offset_value(committed: CommittedOffset) -> bytes:
    """Encode the value of a committed offset."""
    metadata = committed.metadata.encode()
    if committed.expire_timestamp_ms is not None:
        head = _INT16.pack(_OFFSET_VALUE_WITH_EXPIRY) + _INT64.pack(committed.offset)
        tail = _OFFSET_V1_TAIL.pack(committed.commit_timestamp_ms, committed.expire_timestamp_ms)
        return head + _INT16.pack(len(metadata)) + metadata + tail
    tags = b"\0" if committed.topic_id is None else b"\x01\0\x10" + committed.topic_id.bytes
    return b"".join(
        (
            _OFFSET_V4_HEAD.pack(_OFFSET_VALUE, committed.offset, committed.leader_epoch),
            unsigned_varint(len(metadata) + 1),
            metadata,
            _INT64.pack(committed.commit_timestamp_ms),
            tags,
        )
    )


def parse_offset_value(data: bytes) -> CommittedOffset:
    """Decode the value of a committed offset.

    Raises:
        CorruptStateRecordError: if it is malformed.
    """
    reader = RecordReader(data)
    try:
        version = reader.begin_value(_VALUE_VERSION_MAX, _VALUE_FLEXIBLE_FROM)
        offset = reader.int64()
        leader_epoch = reader.int32() if version >= 3 else -1
        metadata = reader.string()
        commit_timestamp_ms = reader.int64()
        expire_timestamp_ms = reader.int64() if version == _OFFSET_VALUE_WITH_EXPIRY else -1
        topic_id = reader.tags().get(_TAG_TOPIC_ID)
        return CommittedOffset(
            offset,
            leader_epoch,
            metadata,
            commit_timestamp_ms,
            None if expire_timestamp_ms < 0 else expire_timestamp_ms,
            None if topic_id is None else UUID(bytes=topic_id),
        )
    except (struct.error, ValueError) as error:
        raise CorruptStateRecordError(f"malformed offset {data[:64].hex()}: {error}") from None


def parse_value(key: ConsumerKey, data: bytes) -> ConsumerValue | None:
    """Decode the value of a consumer group's record; None for an ignored kind.

    Raises:
        CorruptStateRecordError: if it is malformed.
    """
    try:
        return parse_consumer_value(key.kind, data)
    except (struct.error, ValueError) as error:
        raise CorruptStateRecordError(f"malformed {key.kind.name} {data[:64].hex()}: {error}") from None


def group_value(metadata: GroupMetadata) -> bytes:
    """Encode the value of a group's metadata."""
    parts = [
        _INT16.pack(_GROUP_VALUE),
        string(metadata.protocol_type),
        _INT32.pack(metadata.generation_id),
        _nullable_string(metadata.protocol_name),
        _nullable_string(metadata.leader),
        _INT64.pack(metadata.current_state_timestamp_ms),
        _INT32.pack(len(metadata.members)),
    ]
    for member in metadata.members:
        parts += (
            string(member.member_id),
            _nullable_string(member.group_instance_id),
            string(member.client_id),
            string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _INT32.pack(len(member.subscription)),
            member.subscription,
            _INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def parse_group_value(data: bytes) -> GroupMetadata:
    """Decode the value of a group's metadata.

    Raises:
        CorruptStateRecordError: if it is malformed.
    """
    reader = RecordReader(data)
    try:
        version = reader.begin_value(_VALUE_VERSION_MAX, _VALUE_FLEXIBLE_FROM)
        protocol_type = reader.string()
        generation_id = reader.int32()
        protocol_name = reader.nullable_string()
        leader = reader.nullable_string()
        timestamp_ms = reader.int64() if version >= 2 else -1
        members = tuple([_parse_member(reader, version) for _ in range(reader.array_length())])
        return GroupMetadata(protocol_type, generation_id, protocol_name, leader, members, timestamp_ms)
    except (struct.error, ValueError) as error:
        raise CorruptStateRecordError(f"malformed group {data[:64].hex()}: {error}") from None


def _parse_member(reader: RecordReader, version: int) -> MemberMetadata:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription = reader.sized_bytes()
    assignment = reader.sized_bytes()
    reader.tags()
    return MemberMetadata(
        member_id,
        group_instance_id,
        client_id,
        client_host,
        session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def _nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else string(text)
