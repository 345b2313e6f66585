"""The records of `__transaction_state`, in Kafka's own formats (its TransactionLogKey and TransactionLogValue).

    key     version int16 (0), transactional id string
    value   version int16 (0, or 1: flexible), producer id int64, producer epoch int16, timeout int32, state int8,
            partitions [topic string, [partition int32]] or null, last update int64, start int64;
            version 1 has tagged fields: 0 previous producer id, 1 next producer id (int64), 2 client's version (int16)

Kafka 4.1 writes the same formats: its tools read this log, and this broker reads Kafka's. A null value is a tombstone.
"""

import struct
from typing import Final

from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.protocol.wire import string, unsigned_varint
from headwater.logtier.state_topic.record_codec import CorruptStateRecordError, FlexibleWriter, RecordReader
from headwater.logtier.transaction.metadata import (
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
_FLEXIBLE_FROM: Final = 1
_TAG_PREVIOUS_PRODUCER_ID: Final = 0
_TAG_NEXT_PRODUCER_ID: Final = 1
_TAG_CLIENT_VERSION: Final = 2


def transaction_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id.

    >>> transaction_key("t").hex(" ")
    '00 00 00 01 74'
    """
    return _INT16.pack(_KEY) + string(transactional_id)


def parse_key(data: bytes) -> str | None:
    """Decode the transactional id of a key; None for a version later than Kafka 4.1's.

    Raises:
        CorruptStateRecordError: the key is malformed.
    """
    reader = RecordReader(data)
    try:
        return reader.string() if reader.int16() == _KEY else None
    except (struct.error, ValueError) as error:
        raise CorruptStateRecordError(f"malformed key {data[:64].hex()}: {error}") from None


def transaction_value(metadata: TransactionMetadata) -> bytes:
    """Encode the value of a transactional id, in version 1."""
    parts = [
        _HEAD.pack(_VALUE, metadata.producer_id, metadata.producer_epoch, metadata.timeout_ms, metadata.state.number),
    ]
    if metadata.state is TransactionState.EMPTY:
        parts.append(b"\0")
    else:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(metadata.partitions):
            by_topic.setdefault(topic, []).append(partition)
        parts.append(unsigned_varint(len(by_topic) + 1))
        for topic, partitions in by_topic.items():
            name = topic.encode()
            parts += (unsigned_varint(len(name) + 1), name, unsigned_varint(len(partitions) + 1))
            parts += (*map(_INT32.pack, partitions), b"\0")
    parts += (_TIMES.pack(metadata.last_update_ms, metadata.start_ms), _tags(metadata))
    return b"".join(parts)


def _tags(metadata: TransactionMetadata) -> bytes:
    fields: dict[int, bytes] = {}
    if metadata.previous_producer_id != NO_PRODUCER_ID:
        fields[_TAG_PREVIOUS_PRODUCER_ID] = _INT64.pack(metadata.previous_producer_id)
    if metadata.next_producer_id != NO_PRODUCER_ID:
        fields[_TAG_NEXT_PRODUCER_ID] = _INT64.pack(metadata.next_producer_id)
    if metadata.client_version != TRANSACTION_VERSION_CLASSIC:
        fields[_TAG_CLIENT_VERSION] = _INT16.pack(metadata.client_version)
    return FlexibleWriter().tags(fields).to_bytes()


def parse_value(data: bytes) -> TransactionMetadata:
    """Decode the value of a transactional id.

    Raises:
        CorruptStateRecordError: the value is malformed.
    """
    try:
        return _parse_value(RecordReader(data))
    except (struct.error, ValueError) as error:
        raise CorruptStateRecordError(f"malformed transaction {data[:64].hex()}: {error}") from None


def _parse_value(reader: RecordReader) -> TransactionMetadata:
    reader.begin_value(_VALUE, _FLEXIBLE_FROM)
    producer_id = reader.int64()
    producer_epoch = reader.int16()
    timeout_ms = reader.int32()
    number = reader.int8()
    state = STATES_BY_NUMBER.get(number)
    if state is None:
        raise ValueError(f"unknown state {number}")
    partitions: set[TopicPartition] = set()
    for _ in range(reader.nullable_array_length()):
        topic = reader.string()
        partitions.update(TopicPartition(topic, reader.int32()) for _ in range(reader.nullable_array_length()))
        reader.tags()
    last_update_ms = reader.int64()
    start_ms = reader.int64()
    tags = reader.tags()
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
