"""Record batches, there and back: with ourselves, and with kafka-python's codec in both directions."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from headwater.logtier.records.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_LOG_APPEND,
    TRANSACTIONAL,
    CorruptRecordsError,
    Record,
    build_batch,
    check_batch,
    decode_records,
    iterate_batches,
)
from headwater.logtier.records.compression import CODECS, compress, decompress

#: No codec may come near this with the small batches below.
LIMIT_BYTES = 1 << 20

CODEC = st.sampled_from(list(CODECS.values()))
BYTES = st.none() | st.binary(max_size=40) | st.integers(0, 5000).map(lambda size: b"departed " * (size // 9))
NAME = st.text(st.characters(codec="utf-8"), max_size=8)
HEADERS = st.lists(st.tuples(NAME, st.none() | st.binary(max_size=20)), max_size=4).map(tuple)
TIMESTAMP = st.integers(-1, 2**41)
RECORD = st.builds(Record, BYTES, BYTES, TIMESTAMP, HEADERS)
RECORDS = st.lists(RECORD, min_size=1, max_size=12)
FLAGS = st.sets(st.sampled_from([TRANSACTIONAL, CONTROL, DELETE_HORIZON])).map(sum)
PRODUCER = st.just((-1, -1, -1)) | st.tuples(
    st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)
)
BASE_OFFSET = st.integers(0, 2**62)


def with_offsets(records: list[Record], base_offset: int) -> list[Record]:
    return [record._replace(offset=base_offset + i) for i, record in enumerate(records)]


@given(RECORDS, CODEC, FLAGS, PRODUCER, BASE_OFFSET, st.integers(-1, 2**31 - 1))
def test_a_batch_comes_back_whole(
    records: list[Record], codec: int, flags: int, producer: tuple[int, int, int], base_offset: int, epoch: int
) -> None:
    producer_id, producer_epoch, base_sequence = producer
    batch = build_batch(
        records,
        base_offset=base_offset,
        partition_leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        codec=codec,
        attributes=flags,
    )
    header = check_batch(batch)
    assert decode_records(batch) == with_offsets(records, base_offset)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset) == (base_offset, base_offset + len(records) - 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer
    assert (header.codec, header.partition_leader_epoch) == (codec, epoch)
    assert header.is_transactional == bool(flags & TRANSACTIONAL)
    assert header.is_control == bool(flags & CONTROL)
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)


@given(RECORDS, CODEC)
def test_log_append_time_is_every_records_time(records: list[Record], codec: int) -> None:
    batch = build_batch(records, codec=codec, attributes=TIMESTAMP_TYPE_LOG_APPEND)
    newest = max(record.timestamp_ms for record in records)
    assert {record.timestamp_ms for record in decode_records(batch)} == {newest}


@given(st.lists(RECORDS, max_size=3), st.integers(0, 200))
def test_batches_in_a_row_are_told_apart_and_a_cut_one_is_left_out(batches: list[list[Record]], cut: int) -> None:
    parts = [build_batch(records) for records in batches]
    data = b"".join(parts)
    assert [bytes(batch) for _, batch in iterate_batches(data)] == parts
    cut = min(cut, len(data))
    kept = [bytes(batch) for _, batch in iterate_batches(data[: len(data) - cut])]
    assert kept == parts[: len(kept)]
    assert len(data) - sum(map(len, kept)) >= cut


@given(RECORDS, CODEC, st.data())
def test_a_flipped_byte_never_passes_the_checksum_nor_breaks_the_decoder(
    records: list[Record], codec: int, data: st.DataObject
) -> None:
    batch = bytearray(build_batch(records, codec=codec))
    position = data.draw(st.integers(0, len(batch) - 1))
    batch[position] ^= data.draw(st.integers(1, 255))
    # Base offset and leader epoch are outside of the checksum: the broker writes them.
    if not (position < LOG_OVERHEAD - 4 or LOG_OVERHEAD <= position < LOG_OVERHEAD + 4):
        try:
            check_batch(bytes(batch))
        except CorruptRecordsError:
            pass
        else:
            raise AssertionError(f"a flip at byte {position} was not seen")
    with contextlib.suppress(CorruptRecordsError):
        decode_records(bytes(batch), limit_bytes=LIMIT_BYTES)


@given(st.binary(max_size=300), CODEC, st.integers(-1, 2**31 - 1))
def test_any_bytes_as_records_are_read_or_refused(body: bytes, codec: int, count: int) -> None:
    batch = bytearray(build_batch([Record(None, None)], codec=codec)[:HEADER_BYTES] + body)
    batch[8:12] = (len(batch) - LOG_OVERHEAD).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    with contextlib.suppress(CorruptRecordsError):
        decode_records(bytes(batch), limit_bytes=LIMIT_BYTES)


@given(st.binary(max_size=2000) | st.integers(0, 300_000).map(bytes), CODEC, st.integers(0, 400_000))
def test_compressed_bytes_come_back_unless_they_are_more_than_the_limit(
    data: bytes, codec: int, limit_bytes: int
) -> None:
    compressed = compress(codec, data)
    if len(data) <= limit_bytes:
        assert decompress(codec, compressed, limit_bytes=limit_bytes) == data
    else:
        try:
            decompress(codec, compressed, limit_bytes=limit_bytes)
        except CorruptRecordsError:
            return
        raise AssertionError("more than the limit came out")


# kafka-python refuses what it cannot say: a header without a value is fine, a timestamp below zero is not.
FOREIGN_RECORDS = st.lists(st.builds(Record, BYTES, BYTES, st.integers(0, 2**41), HEADERS), min_size=1, max_size=8)


@given(FOREIGN_RECORDS, CODEC, st.booleans(), PRODUCER)
def test_what_kafka_python_writes_is_read(
    records: list[Record], codec: int, is_transactional: bool, producer: tuple[int, int, int]
) -> None:
    builder: Any = DefaultRecordBatchBuilder(2, codec, is_transactional, *producer, 1 << 24)
    for i, record in enumerate(records):
        builder.append(i, record.timestamp_ms, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    header = check_batch(batch)
    assert decode_records(batch) == with_offsets(records, 0)
    assert header.is_transactional == is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer


@given(RECORDS, CODEC, BASE_OFFSET)
def test_what_we_write_is_read_by_kafka_python(records: list[Record], codec: int, base_offset: int) -> None:
    batch: Any = DefaultRecordBatch(build_batch(records, codec=codec, base_offset=base_offset))
    assert batch.validate_crc()
    found = [
        Record(each.key, each.value, each.timestamp, tuple((name, value) for name, value in each.headers), each.offset)
        for each in batch
    ]
    assert found == with_offsets(records, base_offset)
