"""Checks the records of a batch for a compacted topic: each is whole and has a key. Pure.

For other topics the broker does not decode records; a compacted topic needs records that the cleaner can read.
"""

from crc32c import crc32c

from headwater.logtier.log.appending.recompression import codec_of
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import (
    ATTRIBUTES,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
    Buffer,
    RecordBatchHeader,
    records_bytes,
)
from headwater.logtier.records.compression import NONE, CorruptRecordsError

#: Uncompressed batches up to this size take a few milliseconds at most; compressed ones have no such bound.
_QUICK_BYTES = 32 * 1024
_VARINT_BYTES_MAX = 10
_RECORD_BYTES_MIN = 7


class CheckedRecords(bytes):
    """A batch with checked records, which the append does not check again."""

    __slots__ = ()


def is_quick(records: Buffer) -> bool:
    """Whether the check of a batch is short enough for the event loop."""
    return len(records) <= _QUICK_BYTES and codec_of(records) == NONE


def check_keyed_batch(records: Buffer, batch_bytes_max: int) -> Buffer:
    """Check a batch, on any thread; a batch that the append rejects for another reason is returned unchanged.

    Raises:
        KafkaError: As `check_keyed_records`.
    """
    if not HEADER_BYTES <= len(records) <= batch_bytes_max:
        return records
    fields = HEADER.unpack_from(records)
    if fields[1] + LOG_OVERHEAD != len(records) or fields[3] != MAGIC_V2:
        return records
    if crc32c(memoryview(records)[ATTRIBUTES:]) != fields[4]:
        return records
    check_keyed_records(records)
    return CheckedRecords(records)


def check_keyed_records(batch: Buffer) -> None:
    """Check every record's frame and key, in about a microsecond a record.

    Raises:
        KafkaError: invalid_record for a record without a key, corrupt_message if the records contradict the header.
    """
    header = RecordBatchHeader.parse(batch)
    try:
        data = bytes(records_bytes(batch, header))
        if header.record_count > len(data) // _RECORD_BYTES_MIN:
            raise IndexError(f"{header.record_count} do not fit into {len(data)} bytes")
        _walk(data, header)
    except (IndexError, CorruptRecordsError) as error:
        raise KafkaError(ErrorCode.corrupt_message, f"the records of a batch are damaged: {error}") from None


def _walk(data: bytes, header: RecordBatchHeader) -> None:
    position = 0
    last_delta = -1
    for index in range(header.record_count):
        size, position = _varint(data, position)
        end = position + size
        if size < _RECORD_BYTES_MIN - 1 or end > len(data):
            raise IndexError(f"record {index} claims {size} bytes")
        _, position = _varint(data, position + 1)
        delta, position = _varint(data, position)
        if not last_delta < delta <= header.last_offset_delta:
            raise IndexError(f"record {index} has offset delta {delta}")
        last_delta = delta
        key_size, position = _varint(data, position)
        if key_size < 0:
            raise KafkaError(
                ErrorCode.invalid_record, f"record {index} of a batch has no key, which a compacted topic needs"
            )
        value_size, position = _varint(data, position + key_size)
        if max(value_size, 0) > end - position:
            raise IndexError(f"record {index} has a value of {value_size} bytes")
        position = end
    if position != len(data):
        raise IndexError(f"{len(data) - position} bytes follow the last record")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 0x7F
    for shift in range(7, 7 * _VARINT_BYTES_MAX, 7):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
    raise IndexError("a variable-length integer is too long")
