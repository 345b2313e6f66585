"""The record batch of message format v2: header, checksum, and a small record encoder and decoder.

Pure: bytes in, values out. The storage engine reads headers only; whole records are encoded and decoded here for the
coordinators' own topics, for timestamp look-ups and for tests. Bulk decoding for Spark is
`headwater.logtier.records.columns`.

Layout (big endian), from Kafka's protocol guide, "Record Batch": base offset, batch length (of what follows it),
partition leader epoch, magic, CRC-32C of everything after it, attributes, last offset delta, base timestamp, max
timestamp, producer id, producer epoch, base sequence, record count, records. The first 16 bytes (base offset, length,
leader epoch) and the magic are outside the checksum: a broker assigns offsets without touching the rest.

>>> batch = build_batch([Record(b"N14228", b"late", 1_000), Record(None, b"on time", 2_000)])
>>> RecordBatchHeader.parse(batch).last_offset
1
>>> [record.value for record in decode_records(batch)]
[b'late', b'on time']
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from headwater.logtier.records.compression import NONE, Buffer, CorruptRecordsError, compress, decompress

__all__ = [
    "Buffer",
    "CorruptRecordsError",
    "EndTransactionMarker",
    "Record",
    "RecordBatchHeader",
    "build_batch",
    "check_batch",
    "decode_end_transaction_marker",
    "decode_records",
    "end_transaction_marker",
    "iterate_batches",
    "records_bytes",
]

# Position of each field of the header, and the size of the header.
BASE_OFFSET: Final = 0
BATCH_LENGTH: Final = 8
PARTITION_LEADER_EPOCH: Final = 12
MAGIC: Final = 16
CRC: Final = 17
ATTRIBUTES: Final = 21
LAST_OFFSET_DELTA: Final = 23
BASE_TIMESTAMP: Final = 27
MAX_TIMESTAMP: Final = 35
PRODUCER_ID: Final = 43
PRODUCER_EPOCH: Final = 51
BASE_SEQUENCE: Final = 53
RECORD_COUNT: Final = 57
RECORDS: Final = 61
HEADER_BYTES: Final = RECORDS

# The batch length field does not count itself and the base offset before it.
LOG_OVERHEAD: Final = 12
# The fields that the broker rewrites when it assigns offsets.
PREFIX_BYTES: Final = MAGIC

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
PREFIX: Final = struct.Struct(">qii")
# From PRODUCER_ID on: producer id, epoch, base sequence.
PRODUCER_FIELDS: Final = struct.Struct(">qhi")
assert HEADER.size == HEADER_BYTES
assert PREFIX.size == PREFIX_BYTES
assert PRODUCER_FIELDS.size == RECORD_COUNT - PRODUCER_ID

MAGIC_V2: Final = 2

# Attributes.
COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_LOG_APPEND: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_PARTITION_LEADER_EPOCH: Final = -1

# Control records: the key is version int16, type int16; the value of an end-transaction marker is version int16,
# coordinator epoch int32.
CONTROL_ABORT: Final = 0
CONTROL_COMMIT: Final = 1
CONTROL_KEY: Final = struct.Struct(">hh")
END_TRANSACTION_MARKER: Final = struct.Struct(">hi")

# Maximum decompressed size of a batch that the broker decodes: far above the batches of a normal producer (whose
# batch.size and max.request.size count before compression), and small compared with the memory of a broker.
DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024

_VARINT_BYTES_MAX = 5
_VARLONG_BYTES_MAX = 10
# The smallest record: its length, attributes, two deltas, null key, null value, no headers; a byte each.
_RECORD_BYTES_MIN = 7


class EndTransactionMarker(NamedTuple):
    """The content of a control batch that ends a transaction in its partition."""

    committed: bool
    coordinator_epoch: int


class Record(NamedTuple):
    """One record. `offset` is absolute and set by `decode_records`; the encoder ignores it."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = NO_TIMESTAMP
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = -1


@dataclass(frozen=True, slots=True)
class RecordBatchHeader:
    """The fields of the 61 bytes before the records."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def parse(cls, data: Buffer, position: int = 0) -> "RecordBatchHeader":
        """Parse the header at `position`; CorruptRecordsError if bytes are missing or the batch is not v2."""
        if len(data) - position < HEADER_BYTES:
            raise CorruptRecordsError(
                f"a batch header takes {HEADER_BYTES} bytes, only {len(data) - position} remain at position {position}"
            )
        header = cls(*HEADER.unpack_from(data, position))
        if header.magic != MAGIC_V2:
            raise CorruptRecordsError(f"the batch at position {position} has magic {header.magic}, supported is 2")
        if header.size_bytes < HEADER_BYTES:
            raise CorruptRecordsError(f"the batch at position {position} claims a length of {header.batch_length}")
        return header

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, in bytes."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record (of a compacted batch: before compaction)."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, or NO_SEQUENCE."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def codec(self) -> int:
        """Compression codec, one of `compression.CODECS`."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_control(self) -> bool:
        """Whether the batch has control records (markers), which consumers do not return to applications."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """Whether timestamps are the broker's append time, not the producer's."""
        return bool(self.attributes & TIMESTAMP_TYPE_LOG_APPEND)


def increment_sequence(sequence: int, increment: int) -> int:
    """Return the sequence number `increment` after `sequence`; sequence numbers wrap from 2^31 - 1 to 0.

    >>> increment_sequence(2**31 - 1, 1), increment_sequence(2**31 - 2, 3)
    (0, 1)
    """
    return (sequence + increment) & 0x7FFF_FFFF


def check_batch(batch: Buffer) -> RecordBatchHeader:
    """Return the header of one whole batch after checking its length and checksum; CorruptRecordsError."""
    header = RecordBatchHeader.parse(batch)
    if header.size_bytes != len(batch):
        raise CorruptRecordsError(f"the header of a batch claims {header.size_bytes} bytes, the data has {len(batch)}")
    actual = crc32c(memoryview(batch)[ATTRIBUTES:])
    if actual != header.crc:
        raise CorruptRecordsError(
            f"the batch at offset {header.base_offset} has checksum {actual:#010x}, its header says {header.crc:#010x}"
        )
    return header


def iterate_batches(data: Buffer) -> Iterator[tuple[RecordBatchHeader, memoryview]]:
    """Yield each whole batch of `data`; a truncated last batch, as in a fetch, ends the iteration.

    Lengths are checked, checksums are not (see `check_batch`).
    """
    view = memoryview(data)
    position = 0
    while len(view) - position >= HEADER_BYTES:
        header = RecordBatchHeader.parse(view, position)
        end = position + header.size_bytes
        if end > len(view):
            return
        yield header, view[position:end]
        position = end


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    codec: int = NONE,
    attributes: int = 0,
) -> bytes:
    """Encode `records` (at least one) as one batch with consecutive offsets.

    `attributes` adds flags (TRANSACTIONAL, CONTROL, ...) to the codec's bits.
    """
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0].timestamp_ms
    body = bytearray()
    for offset_delta, record in enumerate(records):
        _encode_record(body, offset_delta, record, record.timestamp_ms - base_timestamp)
    max_timestamp = max(record.timestamp_ms for record in records)
    payload = compress(codec, body)
    batch = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        HEADER_BYTES - LOG_OVERHEAD + len(payload),
        partition_leader_epoch,
        MAGIC_V2,
        0,
        attributes | codec,
        len(records) - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch += payload
    batch[CRC:ATTRIBUTES] = crc32c(memoryview(batch)[ATTRIBUTES:]).to_bytes(4, "big")
    return bytes(batch)


def records_bytes(batch: Buffer, header: RecordBatchHeader, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """Return the batch's records section, decompressed (at most `limit_bytes`)."""
    body = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    return body if header.codec == NONE else decompress(header.codec, body, limit_bytes=limit_bytes)


def decode_records(batch: Buffer, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """Decode all records of one whole batch, including control records; the checksum is not verified.

    Offsets are absolute; with LogAppendTime every record has the batch's timestamp. Raises CorruptRecordsError.
    """
    header = RecordBatchHeader.parse(batch)
    body = records_bytes(batch, header, limit_bytes=limit_bytes)
    if not 0 <= header.record_count <= len(body) // _RECORD_BYTES_MIN:
        raise CorruptRecordsError(
            f"the batch at offset {header.base_offset} claims {header.record_count} records in {len(body)} bytes"
        )
    append_time = header.max_timestamp_ms if header.is_log_append_time else None
    data = bytes(body)
    records: list[Record] = []
    position = 0
    try:
        for _ in range(header.record_count):
            record, position = _decode_record(data, position, header, append_time)
            records.append(record)
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptRecordsError(
            f"record {len(records)} of the batch at offset {header.base_offset} is malformed: {error}"
        ) from None
    if position != len(data):
        raise CorruptRecordsError(
            f"{len(data) - position} bytes follow the last record of the batch at offset {header.base_offset}"
        )
    return records


def end_transaction_marker(
    *,
    committed: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    is_log_append_time: bool = False,
) -> bytes:
    """Build the control batch that ends a transaction in one partition."""
    marker = Record(
        CONTROL_KEY.pack(0, CONTROL_COMMIT if committed else CONTROL_ABORT),
        END_TRANSACTION_MARKER.pack(0, coordinator_epoch),
        timestamp_ms,
    )
    return build_batch(
        [marker],
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL | CONTROL | (TIMESTAMP_TYPE_LOG_APPEND if is_log_append_time else 0),
    )


def decode_end_transaction_marker(batch: Buffer) -> EndTransactionMarker | None:
    """Decode a control batch; None for another type of marker or an empty batch after compaction.

    Raises CorruptRecordsError.

    >>> batch = end_transaction_marker(
    ...     committed=False, producer_id=7, producer_epoch=2, coordinator_epoch=4, timestamp_ms=1_000
    ... )
    >>> decode_end_transaction_marker(batch)
    EndTransactionMarker(committed=False, coordinator_epoch=4)
    """
    records = decode_records(batch)
    if not records:
        return None
    key, value = records[0].key, records[0].value
    # Later versions of key and value may be longer; the known fields come first.
    if key is None or len(key) < CONTROL_KEY.size:
        raise CorruptRecordsError("a control record has no type")
    kind = CONTROL_KEY.unpack_from(key)[1]
    if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
        return None
    if value is None or len(value) < END_TRANSACTION_MARKER.size:
        raise CorruptRecordsError("an end-transaction marker has no coordinator epoch")
    return EndTransactionMarker(kind == CONTROL_COMMIT, END_TRANSACTION_MARKER.unpack_from(value)[1])


def _encode_record(out: bytearray, offset_delta: int, record: Record, timestamp_delta: int) -> None:
    body = bytearray(1)  # attributes: unused
    _write_varint(body, timestamp_delta)
    _write_varint(body, offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    _write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, value)
    _write_varint(out, len(body))
    out += body


def _decode_record(
    data: bytes, position: int, header: RecordBatchHeader, append_time: int | None
) -> tuple[Record, int]:
    size, position = _read_varint(data, position, _VARINT_BYTES_MAX)
    end = position + size
    if size < _RECORD_BYTES_MIN - 1 or end > len(data):
        raise IndexError(f"it claims {size} bytes of {len(data) - position}")
    position += 1  # attributes: unused
    timestamp_delta, position = _read_varint(data, position, _VARLONG_BYTES_MAX)
    offset_delta, position = _read_varint(data, position, _VARINT_BYTES_MAX)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    count, position = _read_varint(data, position, _VARINT_BYTES_MAX)
    if not 0 <= count <= end - position:
        raise IndexError(f"it claims {count} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise IndexError("a header has no name")
        header_value, position = _read_bytes(data, position, end)
        headers.append((name.decode(), header_value))
    if position != end:
        raise IndexError(f"its fields take {position - end:+d} bytes against its length")
    timestamp = header.base_timestamp_ms + timestamp_delta if append_time is None else append_time
    return Record(key, value, timestamp, tuple(headers), header.base_offset + offset_delta), end


def _write_varint(out: bytearray, value: int) -> None:
    """Append `value` zigzag-encoded, seven bits a byte, lowest first (of 32 and 64 bit fields alike)."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _read_varint(data: bytes, position: int, bytes_max: int) -> tuple[int, int]:
    value = data[position]
    if value < 0x80:  # by far the most common case
        return (value >> 1) ^ -(value & 1), position + 1
    value &= 0x7F
    for shift in range(7, 7 * bytes_max, 7):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
    raise IndexError(f"a variable-length integer is longer than {bytes_max} bytes")


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        _write_varint(out, -1)
    else:
        _write_varint(out, len(data))
        out += data


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = _read_varint(data, position, _VARINT_BYTES_MAX)
    if size < 0:
        return None, position
    if position + size > end:
        raise IndexError(f"a field of {size} bytes does not fit into the {end - position} that remain")
    return data[position : position + size], position + size
