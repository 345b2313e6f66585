"""The records of consumer groups (KIP-848) in `__consumer_offsets`, in Kafka's own formats.

| key version | key | value |
|---|---|---|
| 3 | group | the group's epoch, and a hash of the metadata of the topics it subscribes to |
| 4 | group | the topics' metadata: up to Kafka 4.0; passed over |
| 5 | group, member | a member's subscription and settings |
| 6 | group | the epoch of the target assignment |
| 7 | group, member | a member's target assignment |
| 8 | group, member | a member's current assignment |
| 16 | group, regular expression | the topics that it matches |

Keys are not flexible; values are flexible (KIP-482) and of version 0. A null value is a tombstone. A group's records,
applied in the order of the log, build its state (`ConsumerGroupState.apply`).
"""

import enum
import struct
from dataclasses import dataclass
from typing import Final

from headwater.logtier.group.consumer.consumer_member import (
    ClassicProtocols,
    ConsumerMember,
    MemberState,
)
from headwater.logtier.group.partitions import Partitions
from headwater.logtier.protocol.wire import string
from headwater.logtier.state_topic.record_codec import FlexibleWriter, RecordReader

_INT16 = struct.Struct(">h")


class RecordKind(enum.IntEnum):
    """Kind of a record, by the version of its key."""

    EPOCH = 3
    TOPIC_METADATA = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


CONSUMER_KINDS: Final = frozenset(RecordKind)
_NAMED_KINDS: Final = frozenset({RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT, RecordKind.REGEX})

_VERSION: Final = 0
_TAG_METADATA_HASH: Final = 0
_TAG_CLASSIC: Final = 0


@dataclass(frozen=True, slots=True)
class ConsumerKey:
    """Key of a consumer group's record. `name`: the member id or the regular expression, if the kind has one."""

    group_id: str
    kind: RecordKind
    name: str = ""


@dataclass(frozen=True, slots=True)
class EpochValue:
    """The group epoch. `metadata_hash` changes with the subscribed topics; 0 without topics."""

    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class MemberValue:
    """A member's subscription and settings, with the attributes of ConsumerMember."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: frozenset[str]
    topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicProtocols | None = None

    @classmethod
    def of(cls, member: ConsumerMember) -> "MemberValue":
        """This part of a member."""
        return cls(
            member.instance_id,
            member.rack_id,
            member.client_id,
            member.client_host,
            member.topic_names,
            member.topic_regex,
            member.rebalance_timeout_ms,
            member.server_assignor,
            member.classic,
        )


@dataclass(frozen=True, slots=True)
class TargetEpochValue:
    """The epoch of the target assignment."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TargetValue:
    """A member's target assignment."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class CurrentValue:
    """A member's current assignment, with the attributes of ConsumerMember."""

    member_epoch: int
    previous_member_epoch: int
    state: MemberState
    assigned: Partitions
    revoking: Partitions

    @classmethod
    def of(cls, member: ConsumerMember) -> "CurrentValue":
        """This part of a member."""
        return cls(member.member_epoch, member.previous_member_epoch, member.state, member.assigned, member.revoking)


@dataclass(frozen=True, slots=True)
class RegexValue:
    """The topics that a regular expression matches. `version` refers to an image of a KRaft quorum; here 0."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


ConsumerValue = EpochValue | MemberValue | TargetEpochValue | TargetValue | CurrentValue | RegexValue


@dataclass(frozen=True, slots=True)
class Change:
    """One record; the value None is a tombstone."""

    key: ConsumerKey
    value: ConsumerValue | None


def consumer_key(key: ConsumerKey) -> bytes:
    """Encode a key."""
    name = string(key.name) if key.kind in _NAMED_KINDS else b""
    return _INT16.pack(key.kind) + string(key.group_id) + name


def parse_consumer_key(kind: RecordKind, reader: RecordReader) -> ConsumerKey:
    """Decode a key after its version, one of CONSUMER_KINDS; raise ValueError or struct.error if malformed."""
    return ConsumerKey(reader.string(), kind, reader.string() if kind in _NAMED_KINDS else "")


def consumer_value(value: ConsumerValue) -> bytes:
    """Encode a value."""
    writer = FlexibleWriter(_VERSION)
    match value:
        case EpochValue():
            hashed = {_TAG_METADATA_HASH: struct.pack(">q", value.metadata_hash)} if value.metadata_hash else {}
            writer.int32(value.epoch).tags(hashed)
        case MemberValue():
            _write_member(writer, value)
        case TargetEpochValue():
            writer.int32(value.epoch).tags()
        case TargetValue():
            _write_partitions(writer, value.partitions)
            writer.tags()
        case CurrentValue():
            writer.int32(value.member_epoch).int32(value.previous_member_epoch).int8(value.state)
            _write_partitions(writer, value.assigned)
            _write_partitions(writer, value.revoking)
            writer.tags()
        case RegexValue():
            writer.array(len(value.topics))
            for topic in sorted(value.topics):
                writer.string(topic)
            writer.int64(value.version).int64(value.timestamp_ms).tags()
    return writer.to_bytes()


def parse_consumer_value(kind: RecordKind, data: bytes) -> ConsumerValue | None:
    """Decode a value; None for an ignored kind; raise ValueError or struct.error if malformed."""
    reader = RecordReader(data)
    reader.begin_value(_VERSION, _VERSION)
    match kind:
        case RecordKind.EPOCH:
            epoch = reader.int32()
            hashed = reader.tags().get(_TAG_METADATA_HASH)
            return EpochValue(epoch, 0 if hashed is None else reader.nested(hashed).int64())
        case RecordKind.MEMBER:
            return _read_member(reader)
        case RecordKind.TARGET_EPOCH:
            return TargetEpochValue(reader.int32())
        case RecordKind.TARGET:
            return TargetValue(_read_partitions(reader))
        case RecordKind.CURRENT:
            return CurrentValue(
                reader.int32(),
                reader.int32(),
                _state(reader.int8()),
                _read_partitions(reader),
                _read_partitions(reader),
            )
        case RecordKind.REGEX:
            topics = frozenset(reader.string() for _ in range(reader.array_length()))
            return RegexValue(topics, reader.int64(), reader.int64())
        case _:
            return None


def _write_member(writer: FlexibleWriter, value: MemberValue) -> None:
    writer.string(value.instance_id).string(value.rack_id).string(value.client_id).string(value.client_host)
    writer.array(len(value.topic_names))
    for name in sorted(value.topic_names):
        writer.string(name)
    writer.string(value.topic_regex or "").int32(value.rebalance_timeout_ms).string(value.server_assignor)
    classic: dict[int, bytes] = {}
    if value.classic is not None:
        # A nullable structure in a tagged field is 0, or begins with 1.
        tagged = FlexibleWriter().int8(1).int32(value.classic.session_timeout_ms).array(len(value.classic.protocols))
        for name, metadata in value.classic.protocols:
            tagged.string(name).sized_bytes(metadata).tags()
        classic[_TAG_CLASSIC] = tagged.tags().to_bytes()
    writer.tags(classic)


def _read_member(reader: RecordReader) -> MemberValue:
    instance_id, rack_id = reader.nullable_string(), reader.nullable_string()
    client_id, client_host = reader.string(), reader.string()
    topic_names = frozenset(reader.string() for _ in range(reader.array_length()))
    topic_regex = reader.nullable_string() or None
    rebalance_timeout_ms = reader.int32()
    server_assignor = reader.nullable_string()
    classic = None
    tagged = reader.tags().get(_TAG_CLASSIC)
    if tagged is not None:
        nested = reader.nested(tagged)
        if nested.int8() > 0:
            session_timeout_ms = nested.int32()
            protocols = []
            for _ in range(nested.array_length()):
                protocols.append((nested.string(), nested.sized_bytes()))
                nested.tags()
            classic = ClassicProtocols(session_timeout_ms, tuple(protocols))
    return MemberValue(
        instance_id,
        rack_id,
        client_id,
        client_host,
        topic_names,
        topic_regex,
        rebalance_timeout_ms,
        server_assignor,
        classic,
    )


def _write_partitions(writer: FlexibleWriter, partitions: Partitions) -> None:
    writer.array(len(partitions))
    for topic_id in sorted(partitions):
        writer.uuid(topic_id).array(len(partitions[topic_id]))
        for index in sorted(partitions[topic_id]):
            writer.int32(index)
        writer.tags()


def _read_partitions(reader: RecordReader) -> Partitions:
    partitions = {}
    for _ in range(reader.array_length()):
        topic_id = reader.uuid()
        partitions[topic_id] = frozenset(reader.int32() for _ in range(reader.array_length()))
        reader.tags()
    return partitions


def _state(number: int) -> MemberState:
    return MemberState(number) if number in set(MemberState) else MemberState.UNKNOWN
