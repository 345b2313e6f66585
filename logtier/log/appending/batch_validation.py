"""Checks of a batch before its append, from the header and the checksum alone. Pure.

Records are not decoded, and compressed records stay compressed: an append costs only the header fields and the checksum
of the batch. Fields are passed as the tuple that `records.batch.HEADER` unpacks.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

from crc32c import crc32c

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.appending.record_frames import check_keyed_records
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import (
    ATTRIBUTES,
    COMPRESSION_MASK,
    CONTROL,
    CRC,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_V2,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_LOG_APPEND,
    RecordBatchHeader,
)
from headwater.logtier.records.compression import ZSTD

Fields: TypeAlias = tuple[Any, ...]


def not_one_batch(view: memoryview) -> KafkaError:
    """Return the error for partition data of a produce request that is not exactly one whole batch.

    Several batches are rejected, as in Kafka, since only some of them might be appended.
    """
    size = len(view)
    if size == 0:
        return _invalid("there is no batch to append")
    if size > MAGIC and view[MAGIC] != MAGIC_V2:
        return _bad_magic(view[MAGIC])
    if size < HEADER_BYTES:
        return _invalid(f"{size} bytes are not a whole record batch")
    claimed = HEADER.unpack_from(view)[1] + LOG_OVERHEAD
    if claimed < HEADER_BYTES:
        return KafkaError(ErrorCode.corrupt_message, f"a batch claims {claimed} bytes, less than its header")
    if claimed > size:
        return _invalid(f"a batch claims {claimed} bytes, the request has {size}")
    return _invalid(f"a partition of a produce request has exactly one record batch; {size - claimed} bytes follow it")


def split_replicated(view: memoryview) -> Iterator[tuple[memoryview, RecordBatchHeader]]:
    """Yield every whole batch of a leader, checksum verified; a truncated last batch of a fetch is ignored.

    Raises:
        KafkaError: corrupt_message for a damaged batch.
    """
    position = 0
    while len(view) - position >= HEADER_BYTES:
        header = RecordBatchHeader(*HEADER.unpack_from(view, position))
        size = header.size_bytes
        if size < HEADER_BYTES or header.magic != MAGIC_V2:
            raise KafkaError(ErrorCode.corrupt_message, "a batch of the leader is damaged")
        if position + size > len(view):
            return
        batch = view[position : position + size]
        check_checksum(batch, header.crc)
        yield batch, header
        position += size


def check_produced_batch(
    view: memoryview,
    fields: Fields,
    config: TopicConfig,
    now_ms: int,
    is_coordinator: bool = False,
    are_records_checked: bool = False,
) -> None:
    """Check a batch of a producer.

    Args:
        is_coordinator: The batch comes from a coordinator, which has no sequence numbers.
        are_records_checked: The records, which a compacted topic checks, were checked before.

    Raises:
        KafkaError: The batch must not be appended.
    """
    (base_offset, _, _, magic, crc, attributes, last_delta, base_ms, max_ms, producer_id, epoch, sequence, count) = (
        fields
    )
    if magic != MAGIC_V2:
        raise _bad_magic(magic)
    if crc32c(view[ATTRIBUTES:]) != crc:
        raise _bad_checksum()
    if len(view) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"a batch of {len(view)} bytes is above max.message.bytes, {config.max_message_bytes}",
        )
    if count < 1 or last_delta != count - 1:
        raise _invalid(f"a batch has {count} records and a last offset delta of {last_delta}")
    if base_offset != 0:
        raise _invalid(f"a batch from a producer begins with offset {base_offset} instead of 0")
    if attributes & (CONTROL | TIMESTAMP_TYPE_LOG_APPEND):
        if attributes & CONTROL:
            raise _invalid("clients may not write control records")
        raise KafkaError(ErrorCode.invalid_timestamp, "only the broker may stamp records with LogAppendTime")
    if attributes & COMPRESSION_MASK > ZSTD:
        raise _invalid(f"unknown compression codec {attributes & COMPRESSION_MASK}")
    if producer_id >= 0 and (epoch < 0 or sequence < 0) and not is_coordinator:
        raise _invalid(f"producer {producer_id} sent epoch {epoch} and sequence {sequence}")
    if (
        max_ms - now_ms > config.message_timestamp_after_max_ms
        or base_ms - now_ms > config.message_timestamp_after_max_ms
        or (base_ms != NO_TIMESTAMP and now_ms - base_ms > config.message_timestamp_before_max_ms)
    ) and config.message_timestamp_type == "CreateTime":
        raise KafkaError(
            ErrorCode.invalid_timestamp,
            f"timestamps from {base_ms} to {max_ms} are too far from the broker's time, {now_ms} "
            "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
        )
    if "compact" in config.cleanup_policy and not are_records_checked:
        check_keyed_records(view)


def check_checksum(view: memoryview, crc: int) -> None:
    """Compare a batch with the checksum in its header.

    Raises:
        KafkaError: corrupt_message if they differ.
    """
    if crc32c(view[ATTRIBUTES:]) != crc:
        raise _bad_checksum()


def stamp_append_time(view: memoryview, fields: Fields, first_offset: int, leader_epoch: int, now_ms: int) -> bytearray:
    """Return the batch's header with its offset, LogAppendTime and a new checksum."""
    (_, length, _, magic, _, attributes, last_delta, base_ms, _, producer_id, epoch, sequence, count) = fields
    attributes |= TIMESTAMP_TYPE_LOG_APPEND
    head = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        head,
        0,
        first_offset,
        length,
        leader_epoch,
        magic,
        0,
        attributes,
        last_delta,
        base_ms,
        now_ms,
        producer_id,
        epoch,
        sequence,
        count,
    )
    crc = crc32c(view[HEADER_BYTES:], crc32c(memoryview(head)[ATTRIBUTES:]))
    head[CRC:ATTRIBUTES] = crc.to_bytes(4, "big")
    return head


def _bad_magic(magic: int) -> KafkaError:
    if magic in (0, 1):
        return _invalid(f"message format v{magic} is not supported; use a client that writes v2 (Kafka 0.11 and later)")
    return KafkaError(ErrorCode.corrupt_message, f"unknown message format {magic}")


def _bad_checksum() -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, "a batch does not match its checksum")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, message)
