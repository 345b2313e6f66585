"""Reads Produce requests, versions 3-13, without copying their records.

Written by hand because it is most of what a busy broker reads, and kio's reader takes only bytes and copies each
partition's records out of them.
"""

import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from logtier.protocol.errors import ProtocolViolationError
from logtier.protocol.wire import read_unsigned_varint, skip_tagged_fields

FIRST_FLEXIBLE_VERSION: Final = 9
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")

#: The fewest bytes that a topic and a partition of one can have; no count is believed that the rest cannot hold.
_SMALLEST_TOPIC_BYTES: Final = 3
_SMALLEST_PARTITION_BYTES: Final = 5
_UUID_BYTES: Final = 16


@dataclass(slots=True)
class PartitionProduceData:
    """Batches for one partition; `records` is a view into the frame, None where the client sent null."""

    index: int
    records: memoryview | None


@dataclass(slots=True)
class TopicProduceData:
    """Batches for one topic, named by `topic_id` from version 13 on and by `name` before; the other one is empty."""

    name: str
    topic_id: UUID | None
    partition_data: list[PartitionProduceData]


@dataclass(slots=True)
class ProduceRequest:
    """A Produce request, with kio's field names."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic_data: list[TopicProduceData]


def read_produce_request(frame: memoryview, position: int, version: int) -> ProduceRequest:
    """Read the body that begins at `position`, behind the whole request header.

    Raises:
        ProtocolViolationError: if the bytes are no such request.
    """
    try:
        if version >= FIRST_FLEXIBLE_VERSION:
            return _read_flexible(frame, position, by_id=version >= FIRST_VERSION_WITH_TOPIC_IDS)
        return _read_classic(frame, position)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise ProtocolViolationError(f"malformed produce request, version {version}: {error}") from error


def _read_classic(frame: memoryview, position: int) -> ProduceRequest:
    transactional_id, position = _string(frame, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    position += _ACKS_TIMEOUT.size
    topic_count, position = _count(frame, position, _SMALLEST_TOPIC_BYTES)
    topics = []
    for _ in range(topic_count):
        name, position = _string(frame, position)
        if name is None:
            raise ValueError("a topic's name is null")
        partition_count, position = _count(frame, position, _SMALLEST_PARTITION_BYTES)
        partitions = []
        for _ in range(partition_count):
            (index,) = _INT.unpack_from(frame, position)
            (size,) = _INT.unpack_from(frame, position + 4)
            position += 8
            records, position = _records(frame, position, size)
            partitions.append(PartitionProduceData(index, records))
        topics.append(TopicProduceData(name, None, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_flexible(frame: memoryview, position: int, *, by_id: bool) -> ProduceRequest:
    transactional_id, position = _compact_string(frame, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    topic_count, position = _compact_count(frame, position + _ACKS_TIMEOUT.size, _SMALLEST_TOPIC_BYTES)
    topics = []
    for _ in range(topic_count):
        topic_id: UUID | None = None
        name: str | None = ""
        if by_id:
            topic_id = UUID(bytes=bytes(frame[position : position + _UUID_BYTES]))
            position += _UUID_BYTES
        else:
            name, position = _compact_string(frame, position)
            if name is None:
                raise ValueError("a topic's name is null")
        partition_count, position = _compact_count(frame, position, _SMALLEST_PARTITION_BYTES)
        partitions = []
        for _ in range(partition_count):
            (index,) = _INT.unpack_from(frame, position)
            size, position = read_unsigned_varint(frame, position + 4)
            records, position = _records(frame, position, size - 1)
            position = skip_tagged_fields(frame, position)
            partitions.append(PartitionProduceData(index, records))
        position = skip_tagged_fields(frame, position)
        topics.append(TopicProduceData(name or "", topic_id, partitions))
    skip_tagged_fields(frame, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _records(frame: memoryview, position: int, size: int) -> tuple[memoryview | None, int]:
    if size < 0:
        if size < -1:
            raise ValueError(f"records claim {size} bytes")
        return None, position
    end = position + size
    if end > len(frame):
        raise ValueError(f"records claim {size} bytes, {len(frame) - position} are left")
    return frame[position:end], end


def _count(frame: memoryview, position: int, smallest_bytes: int) -> tuple[int, int]:
    (count,) = _INT.unpack_from(frame, position)
    return _checked_count(frame, count, position + 4, smallest_bytes)


def _compact_count(frame: memoryview, position: int, smallest_bytes: int) -> tuple[int, int]:
    count, position = read_unsigned_varint(frame, position)
    return _checked_count(frame, count - 1, position, smallest_bytes)


def _checked_count(frame: memoryview, count: int, position: int, smallest_bytes: int) -> tuple[int, int]:
    if count < 0:
        raise ValueError("an array is null")
    if count * smallest_bytes > len(frame) - position:
        raise ValueError(f"an array claims {count} elements in {len(frame) - position} bytes")
    return count, position


def _string(frame: memoryview, position: int) -> tuple[str | None, int]:
    (size,) = _SHORT.unpack_from(frame, position)
    return _text(frame, position + 2, size)


def _compact_string(frame: memoryview, position: int) -> tuple[str | None, int]:
    size, position = read_unsigned_varint(frame, position)
    return _text(frame, position, size - 1)


def _text(frame: memoryview, position: int, size: int) -> tuple[str | None, int]:
    if size < 0:
        return None, position
    end = position + size
    if end > len(frame):
        raise ValueError(f"a string claims {size} bytes, {len(frame) - position} are left")
    return str(frame[position:end], "utf-8"), end
