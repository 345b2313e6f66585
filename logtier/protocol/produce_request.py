"""Decodes Produce requests, versions 3-13, without copying their records.

Written by hand since it is most of the input of a busy broker: kio's reader accepts only bytes and copies the records
of each partition.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from uuid import UUID

from headwater.logtier.protocol.errors import ProtocolViolationError
from headwater.logtier.protocol.request_counts import WHOLE_ELEMENTS_MAX
from headwater.logtier.protocol.wire import read_unsigned_varint, skip_tagged_fields

FIRST_FLEXIBLE_VERSION: Final = 9
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_ACKS_TIMEOUT_COUNT: Final = struct.Struct(">hii")
_INDEX_SIZE: Final = struct.Struct(">ii")
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")

#: Minimum size of a topic and of a partition, in bytes; counts that do not fit into the rest are rejected.
_SMALLEST_TOPIC_BYTES: Final = 3
_SMALLEST_PARTITION_BYTES: Final = 5
_UUID_BYTES: Final = 16
#: Cached topic ids: producers repeat their topics, and creating a UUID is expensive.
_TOPIC_IDS_KEPT: Final = 1024
#: Sign bit in the first byte of a length: a negative length means null.
_SIGN: Final = 0x80


@dataclass(slots=True)
class PartitionProduceData:
    """Batches of one partition; `records` is a view into the frame, None for null."""

    index: int
    records: memoryview | None


@dataclass(slots=True)
class TopicProduceData:
    """Batches of one topic, identified by `topic_id` from version 13 on and by `name` before; the other is empty."""

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
    """Decode a request; `position` is the end of its header without tagged fields.

    Raises:
        ProtocolViolationError: The bytes are not a valid request.
    """
    try:
        if version >= FIRST_FLEXIBLE_VERSION:
            position = skip_tagged_fields(frame, position)
            return _read_flexible(frame, position, by_id=version >= FIRST_VERSION_WITH_TOPIC_IDS)
        return _read_classic(frame, position)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise ProtocolViolationError(f"malformed produce request, version {version}: {error}") from error


# Both loops handle the usual cases (null, no tags) inline, without a function call.


def _read_classic(frame: memoryview, position: int) -> ProduceRequest:
    transactional_id: str | None = None
    if frame[position] & _SIGN:
        position += _SHORT.size
    else:
        transactional_id, position = _string(frame, position)
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT.unpack_from(frame, position)
    position += _ACKS_TIMEOUT_COUNT.size
    frame_bytes = len(frame)
    if not 0 <= topic_count * _SMALLEST_TOPIC_BYTES <= frame_bytes - position:
        raise _bad_count(topic_count, frame_bytes - position)
    topics = []
    elements = topic_count
    for _ in range(topic_count):
        name, position = _string(frame, position)
        (partition_count,) = _INT.unpack_from(frame, position)
        position += _INT.size
        if not 0 <= partition_count * _SMALLEST_PARTITION_BYTES <= frame_bytes - position:
            raise _bad_count(partition_count, frame_bytes - position)
        elements += partition_count
        if elements > WHOLE_ELEMENTS_MAX:
            raise _too_many()
        partitions = []
        for _ in range(partition_count):
            index, size = _INDEX_SIZE.unpack_from(frame, position)
            position += _INDEX_SIZE.size
            if size < 0:
                if size < -1:
                    raise ValueError(f"records claim {size} bytes")
                partitions.append(PartitionProduceData(index, None))
                continue
            end = position + size
            if end > frame_bytes:
                raise _too_long("records claim", size, frame, position)
            partitions.append(PartitionProduceData(index, frame[position:end]))
            position = end
        topics.append(TopicProduceData(name, None, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_flexible(frame: memoryview, position: int, *, by_id: bool) -> ProduceRequest:
    transactional_id: str | None = None
    if frame[position]:
        transactional_id, position = _compact_string(frame, position)
    else:
        position += 1
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    topic_count, position = read_unsigned_varint(frame, position + _ACKS_TIMEOUT.size)
    frame_bytes = len(frame)
    topic_count -= 1
    if not 0 <= topic_count * _SMALLEST_TOPIC_BYTES <= frame_bytes - position:
        raise _bad_count(topic_count, frame_bytes - position)
    topics = []
    elements = topic_count
    for _ in range(topic_count):
        topic_id: UUID | None = None
        name = ""
        if by_id:
            topic_id = _topic_id(bytes(frame[position : position + _UUID_BYTES]))
            position += _UUID_BYTES
        elif frame[position]:
            name, position = _compact_string(frame, position)
        else:
            raise ValueError("a topic's name is null")
        partition_count, position = read_unsigned_varint(frame, position)
        partition_count -= 1
        if not 0 <= partition_count * _SMALLEST_PARTITION_BYTES <= frame_bytes - position:
            raise _bad_count(partition_count, frame_bytes - position)
        elements += partition_count
        if elements > WHOLE_ELEMENTS_MAX:
            raise _too_many()
        partitions = []
        for _ in range(partition_count):
            (index,) = _INT.unpack_from(frame, position)
            size, position = read_unsigned_varint(frame, position + _INT.size)
            records: memoryview | None = None
            if size:
                end = position + size - 1
                if end > frame_bytes:
                    raise _too_long("records claim", size - 1, frame, position)
                records = frame[position:end]
                position = end
            position = position + 1 if frame[position] == 0 else skip_tagged_fields(frame, position)
            partitions.append(PartitionProduceData(index, records))
        position = skip_tagged_fields(frame, position)
        topics.append(TopicProduceData(name, topic_id, partitions))
    skip_tagged_fields(frame, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


@lru_cache(_TOPIC_IDS_KEPT)
def _topic_id(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def _bad_count(count: int, left_bytes: int) -> ValueError:
    return ValueError(f"an array claims {count} elements in {left_bytes} bytes" if count >= 0 else "an array is null")


def _too_many() -> ValueError:
    return ValueError(f"it has more than {WHOLE_ELEMENTS_MAX} elements; split it into several requests")


def _string(frame: memoryview, position: int) -> tuple[str, int]:
    (size,) = _SHORT.unpack_from(frame, position)
    if size < 0:
        raise ValueError("a topic's name is null")
    position += _SHORT.size
    end = position + size
    if end > len(frame):
        raise _too_long("a string claims", size, frame, position)
    return str(frame[position:end], "utf-8"), end


def _compact_string(frame: memoryview, position: int) -> tuple[str, int]:
    size, position = read_unsigned_varint(frame, position)
    end = position + size - 1
    if end > len(frame):
        raise _too_long("a string claims", size - 1, frame, position)
    return str(frame[position:end], "utf-8"), end


def _too_long(claim: str, size: int, frame: memoryview, position: int) -> ValueError:
    return ValueError(f"{claim} {size} bytes, {len(frame) - position} are left")
