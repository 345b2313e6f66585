"""Record batches: what is built is read back, and malformed ones are refused with what is wrong."""

import struct

import pytest

from headwater.logtier.records.batch import (
    CRC,
    LAST_OFFSET_DELTA,
    NO_SEQUENCE,
    RECORD_COUNT,
    RECORDS,
    TIMESTAMP_TYPE_LOG_APPEND,
    CorruptRecordsError,
    Record,
    RecordBatchHeader,
    build_batch,
    check_batch,
    decode_records,
    end_transaction_marker,
    increment_sequence,
    iterate_batches,
)
from headwater.logtier.records.compression import CODECS

RECORDS_IN = [
    Record(b"N14228", b"late", 1_000, (("origin", b"EWR"), ("none", None))),
    Record(None, b"x" * 500, 900),
    Record(b"", None, 2**40),
]


@pytest.mark.parametrize("codec", CODECS.values())
def test_records_come_back_with_absolute_offsets(codec: int) -> None:
    batch = build_batch(RECORDS_IN, base_offset=40, codec=codec)
    header = check_batch(batch)
    assert (header.base_offset, header.last_offset, header.record_count, header.codec) == (40, 42, 3, codec)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1_000, 2**40)
    assert decode_records(batch) == [record._replace(offset=40 + i) for i, record in enumerate(RECORDS_IN)]


def test_a_batch_with_a_flipped_bit_does_not_pass_the_checksum() -> None:
    batch = bytearray(build_batch(RECORDS_IN))
    batch[-1] ^= 1
    with pytest.raises(CorruptRecordsError, match="checksum"):
        check_batch(batch)


def test_offsets_and_leader_epoch_are_outside_of_the_checksum() -> None:
    batch = bytearray(build_batch(RECORDS_IN))
    struct.pack_into(">qii", batch, 0, 777, len(batch) - 12, 5)
    assert check_batch(batch).last_offset == 779


def test_a_cut_last_batch_ends_the_iteration() -> None:
    one = build_batch(RECORDS_IN)
    two = build_batch(RECORDS_IN, base_offset=3)
    assert [header.base_offset for header, _ in iterate_batches(one + two)] == [0, 3]
    assert [header.base_offset for header, _ in iterate_batches(one + two[:-1])] == [0]
    assert list(iterate_batches(b"")) == []


@pytest.mark.parametrize(
    ("position", "value", "reason"), [(8, -13, "length"), (8, 0, "length"), (16 - 3, 0x01, "magic")]
)
def test_a_header_that_lies_is_refused(position: int, value: int, reason: str) -> None:
    batch = bytearray(build_batch(RECORDS_IN))
    struct.pack_into(">i", batch, position, value)
    with pytest.raises(CorruptRecordsError, match=reason):
        list(iterate_batches(batch))


def test_a_hostile_record_count_is_refused_before_anything_is_decoded() -> None:
    batch = bytearray(build_batch(RECORDS_IN))
    struct.pack_into(">i", batch, RECORD_COUNT, 2**31 - 1)
    with pytest.raises(CorruptRecordsError, match="claims 2147483647 records"):
        decode_records(batch)


def test_a_record_that_is_longer_than_the_batch_is_refused() -> None:
    batch = bytearray(build_batch([Record(b"k", b"v", 0)]))
    batch[RECORDS] = 0x7E
    with pytest.raises(CorruptRecordsError, match="malformed"):
        decode_records(batch)


def test_an_endless_varint_is_refused() -> None:
    batch = build_batch([Record(b"k", b"v" * 30, 0)])
    with pytest.raises(CorruptRecordsError, match="longer than 5 bytes"):
        decode_records(batch[:RECORDS] + b"\xff" * (len(batch) - RECORDS))


def test_bytes_after_the_last_record_are_refused() -> None:
    batch = bytearray(build_batch(RECORDS_IN))
    struct.pack_into(">i", batch, RECORD_COUNT, 2)
    with pytest.raises(CorruptRecordsError, match="follow the last record"):
        decode_records(batch)


def test_log_append_time_overrides_the_records_timestamps() -> None:
    batch = build_batch(RECORDS_IN, attributes=TIMESTAMP_TYPE_LOG_APPEND)
    assert {record.timestamp_ms for record in decode_records(batch)} == {2**40}


def test_sequences_wrap_after_the_largest_int32() -> None:
    header = check_batch(build_batch(RECORDS_IN, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert header.last_sequence == 0
    assert increment_sequence(0, -1) == 2**31 - 1
    assert check_batch(build_batch(RECORDS_IN)).last_sequence == NO_SEQUENCE


def test_a_transaction_marker_is_a_control_batch() -> None:
    marker = end_transaction_marker(
        committed=True, producer_id=9, producer_epoch=2, coordinator_epoch=4, timestamp_ms=5_000
    )
    header = check_batch(marker)
    assert header.is_control
    assert header.is_transactional
    [record] = decode_records(marker)
    assert record.key == b"\x00\x00\x00\x01"
    assert record.value == b"\x00\x00\x00\x00\x00\x04"


def test_a_batch_needs_a_record() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_batch([])


def test_the_header_fields_stand_where_the_protocol_says() -> None:
    batch = build_batch(RECORDS_IN, producer_id=3, producer_epoch=1, base_sequence=7)
    assert struct.unpack_from(">i", batch, LAST_OFFSET_DELTA) == (2,)
    assert struct.unpack_from(">I", batch, CRC)[0] == RecordBatchHeader.parse(batch).crc
