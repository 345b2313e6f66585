"""The records of `__transaction_state`, in Kafka's own formats (its TransactionLogKey and TransactionLogValue).

    key     version int16 (0), transactional id string
    value   version int16 (0, or 1: flexible), producer id int64, producer epoch int16, timeout int32, state int8,
            partitions [topic string, [partition int32]] or null, last update int64, start int64;
            version 1 has tagged fields: 0 previous producer id, 1 next producer id (int64), 2 client's version (int16)

These are what Kafka 4.1 writes, so its tools read our log and we read its. A null value is a tombstone.
"""

import struct
from typing import Final

from logtier.protocol.topic_partition import TopicPartition
from logtier.transaction.metadata import (
    NO_PRODUCER_ID,
    STATES_BY_NUMBER,
    TRANSACTION_VERSION_CLASSIC,
    TransactionMetadata,
    TransactionState,
)

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")

_KEY: Final = 0
_VALUE: Final = 1
_TAG_PREVIOUS_PRODUCER_ID: Final = 0
_TAG_NEXT_PRODUCER_ID: Final = 1
_TAG_CLIENT_VERSION: Final = 2


class CorruptTransactionRecordError(Exception):
    """A record of `__transaction_state` that is none of the known formats."""


def transaction_key(transactional_id: str) -> bytes:
    """The key of a transactional id.

    >>> transaction_key("t").hex(" ")
    '00 00 00 01 74'
    """
    data = transactional_id.encode()
    return _INT16.pack(_KEY) + _INT16.pack(len(data)) + data


def parse_key(data: bytes) -> str | None:
    """The transactional id of a key; None if it is of a version that came after Kafka 4.1.

    Raises:
        CorruptTransactionRecordError: if it is malformed.
    """
    reader = _Reader(data)
    try:
        return reader.text(reader.int16()) if reader.int16() == _KEY else None
    except (struct.error, ValueError) as error:
        raise CorruptTransactionRecordError(f"malformed key {data[:64].hex()}: {error}") from None


def transaction_value(metadata: TransactionMetadata) -> bytes:
    """The value of a transactional id, in version 1."""
    parts = [
        _HEAD.pack(_VALUE, metadata.producer_id, metadata.producer_epoch, metadata.timeout_ms, metadata.state.number),
    ]
    if metadata.state is TransactionState.EMPTY:
        parts.append(b"\0")
    else:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(metadata.partitions):
            by_topic.setdefault(topic, []).append(partition)
        parts.append(_varint(len(by_topic) + 1))
        for topic, partitions in by_topic.items():
            name = topic.encode()
            parts += (_varint(len(name) + 1), name, _varint(len(partitions) + 1))
            parts += (*map(_INT32.pack, partitions), b"\0")
    parts += (_TIMES.pack(metadata.last_update_ms, metadata.start_ms), _tags(metadata))
    return b"".join(parts)


def _tags(metadata: TransactionMetadata) -> bytes:
    fields = []
    if metadata.previous_producer_id != NO_PRODUCER_ID:
        fields.append((_TAG_PREVIOUS_PRODUCER_ID, _INT64.pack(metadata.previous_producer_id)))
    if metadata.next_producer_id != NO_PRODUCER_ID:
        fields.append((_TAG_NEXT_PRODUCER_ID, _INT64.pack(metadata.next_producer_id)))
    if metadata.client_version != TRANSACTION_VERSION_CLASSIC:
        fields.append((_TAG_CLIENT_VERSION, _INT16.pack(metadata.client_version)))
    return _varint(len(fields)) + b"".join(_varint(tag) + _varint(len(data)) + data for tag, data in fields)


def parse_value(data: bytes) -> TransactionMetadata:
    """Read the value of a transactional id.

    Raises:
        CorruptTransactionRecordError: if it is malformed.
    """
    reader = _Reader(data)
    try:
        return _parse_value(reader)
    except (struct.error, ValueError) as error:
        raise CorruptTransactionRecordError(f"malformed transaction {data[:64].hex()}: {error}") from None


def _parse_value(reader: "_Reader") -> TransactionMetadata:
    version = reader.int16()
    if not 0 <= version <= _VALUE:
        raise ValueError(f"unknown version {version}")
    is_flexible = version >= 1
    producer_id = reader.int64()
    producer_epoch = reader.int16()
    timeout_ms = reader.int32()
    number = reader.int8()
    state = STATES_BY_NUMBER.get(number)
    if state is None:
        raise ValueError(f"unknown state {number}")
    partitions: set[TopicPartition] = set()
    for _ in range(reader.count(is_flexible)):
        topic = reader.text(reader.varint() - 1 if is_flexible else reader.int16())
        partitions.update(TopicPartition(topic, reader.int32()) for _ in range(reader.count(is_flexible)))
        reader.tags(is_flexible)
    last_update_ms = reader.int64()
    start_ms = reader.int64()
    tags = reader.tags(is_flexible)
    previous = tags.get(_TAG_PREVIOUS_PRODUCER_ID)
    following = tags.get(_TAG_NEXT_PRODUCER_ID)
    client_version = tags.get(_TAG_CLIENT_VERSION)
    return TransactionMetadata(
        producer_id,
        producer_epoch,
        NO_PRODUCER_ID if previous is None else _INT64.unpack(previous)[0],
        NO_PRODUCER_ID if following is None else _INT64.unpack(following)[0],
        timeout_ms=timeout_ms,
        state=state,
        partitions=frozenset(partitions),
        start_ms=start_ms,
        last_update_ms=last_update_ms,
        client_version=TRANSACTION_VERSION_CLASSIC if client_version is None else _INT16.unpack(client_version)[0],
    )


class _Reader:
    """Reads one key or value from its beginning; struct.error or ValueError if the bytes are not what they say."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def int8(self) -> int:
        return int.from_bytes(self.take(1), "big", signed=True)

    def int16(self) -> int:
        return int.from_bytes(self.take(_INT16.size), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(_INT32.size), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.take(_INT64.size), "big", signed=True)

    def text(self, size: int) -> str:
        return self.take(size).decode()

    def count(self, is_flexible: bool) -> int:
        """Length of an array; a null one has none."""
        count = self.varint() - 1 if is_flexible else self.int32()
        if count > len(self._data):
            raise ValueError(f"an array of {count} elements")
        return max(count, 0)

    def tags(self, is_flexible: bool) -> dict[int, bytes]:
        """The tagged fields at the end of a flexible structure; none elsewhere."""
        return {self.varint(): self.take(self.varint()) for _ in range(self.varint())} if is_flexible else {}

    def varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a varint has more than five bytes")

    def take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"{size} bytes are wanted, {len(self._data) - self._position} remain")
        data = self._data[self._position : end]
        self._position = end
        return data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
