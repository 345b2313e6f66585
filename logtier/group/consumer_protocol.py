"""The embedded protocol of classic consumers: a member's subscription and its assignment.

Both are opaque to the broker, with two exceptions. Offset expiry and OffsetDelete spare the topics to which a group
subscribes. In a group of both protocols (KIP-848's online migration), the broker reads the partitions
that a member owns, and encodes its assignment.

Every version of a subscription begins like version 0, so that future versions are readable, too:

    version int16, topics [string], user data nullable bytes
    from version 1 on: owned partitions [topic string, partitions [int32]]; 2: generation int32; 3: rack nullable string
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from headwater.logtier.protocol.wire import string
from headwater.logtier.state_topic.record_codec import RecordReader

PROTOCOL_TYPE = "consumer"

_HEADER = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")
_COUNT = struct.Struct(">i")

_VERSION_MAX: Final = 3
_OWNED_FROM: Final = 1
_GENERATION_FROM: Final = 2
_RACK_FROM: Final = 3


@dataclass(frozen=True, slots=True)
class Subscription:
    """The broker's part of a ConsumerProtocolSubscription. `owned`: partitions by topic name."""

    version: int
    topics: frozenset[str]
    owned: Mapping[str, frozenset[int]]
    rack_id: str | None


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Return the topics of a ConsumerProtocolSubscription; None if the bytes are not one.

    >>> sorted(subscribed_topics(bytes.fromhex("0003 00000001 0001 74 ffffffff")))
    ['t']
    >>> subscribed_topics(b"anything else") is None
    True
    """
    try:
        version, count = _HEADER.unpack_from(subscription)
        if version < 0 or not 0 <= count <= len(subscription):
            return None
        position = _HEADER.size
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(subscription, position)
            position += _LENGTH.size
            end = position + length
            if length < 0 or end > len(subscription):
                return None
            topics.append(subscription[position:end].decode())
            position = end
        return frozenset(topics)
    except (struct.error, UnicodeDecodeError):
        return None


def all_subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of all members; None if any subscription is unreadable."""
    topics: set[str] = set()
    for subscription in subscriptions:
        found = subscribed_topics(subscription)
        if found is None:
            return None
        topics |= found
    return frozenset(topics)


def parse_subscription(data: bytes) -> Subscription:
    """Decode a subscription; raise ValueError or struct.error if the bytes are not one."""
    reader = RecordReader(data)
    version = reader.int16()
    if version < 0:
        raise ValueError(f"version {version}")
    topics = frozenset(reader.string() for _ in range(reader.array_length()))
    _skip_nullable_bytes(reader)
    owned = _read_partitions(reader) if version >= _OWNED_FROM else {}
    if version >= _GENERATION_FROM:
        reader.int32()
    rack_id = reader.nullable_string() if version >= _RACK_FROM else None
    return Subscription(version, topics, owned, rack_id or None)


def parse_assignment(data: bytes) -> tuple[Mapping[str, frozenset[int]], bool]:
    """Decode the partitions of an assignment by topic name, and whether it carries data of a custom assignor.

    Empty bytes are an empty assignment, which a member has before its leader assigns. Raises ValueError or struct.error
    if the bytes are not an assignment.
    """
    if not data:
        return {}, False
    reader = RecordReader(data)
    if reader.int16() < 0:
        raise ValueError("a negative version")
    return _read_partitions(reader), _skip_nullable_bytes(reader) > 0


def encode_assignment(version: int, partitions: Mapping[str, Iterable[int]]) -> bytes:
    """Encode a ConsumerProtocolAssignment in the version of the member's subscription.

    >>> encode_assignment(1, {"t": [0, 1]}).hex()
    '000100000001000174000000020000000000000001ffffffff'
    """
    parts = [_HEADER.pack(min(version, _VERSION_MAX), len(partitions))]
    for topic, indexes in sorted(partitions.items()):
        numbers = sorted(indexes)
        parts += (string(topic), _COUNT.pack(len(numbers)), *map(_COUNT.pack, numbers))
    parts.append(_COUNT.pack(-1))
    return b"".join(parts)


def _read_partitions(reader: RecordReader) -> dict[str, frozenset[int]]:
    partitions: dict[str, frozenset[int]] = {}
    for _ in range(reader.array_length()):
        topic = reader.string()
        partitions[topic] = frozenset(reader.int32() for _ in range(reader.array_length()))
    return partitions


def _skip_nullable_bytes(reader: RecordReader) -> int:
    """Skip the user data; return the number of its bytes."""
    size = reader.int32()
    if size > 0:
        reader.skip(size)
    return max(size, 0)
