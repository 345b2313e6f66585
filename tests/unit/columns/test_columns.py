"""Decoding and encoding by columns, held against the record-by-record codec of `headwater.logtier.records.batch`."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.logtier.client.partitioner import murmur2, partition_for_key
from headwater.logtier.client.producer_state import ProducerIdentity, seal_batch
from headwater.logtier.records import columns_kernels as kernels
from headwater.logtier.records.batch import Record, build_batch, check_batch, decode_records, iterate_batches
from headwater.logtier.records.columns import column_schema, decode_columns
from headwater.logtier.records.columns_encode import BatchEncoder
from headwater.logtier.records.compression import CODECS, CorruptRecordsError
from tests.example_counts import examples

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
CODEC_VALUES = st.sampled_from(sorted(CODECS.values()))
BYTES = st.one_of(st.none(), st.binary(max_size=300))
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(Record, BYTES, BYTES, st.integers(-1, 2**42), HEADERS, st.just(-1)), min_size=1, max_size=30
)


def record_batch(columns: dict[str, Any]) -> pa.RecordBatch:
    return pa.record_batch(columns)


def resealed(batch: bytearray) -> bytes:
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def decoded(data: bytes, **arguments: Any) -> list[dict[str, Any]]:
    batches = list(decode_columns(data, "t", 3, **arguments))
    for batch in batches:
        batch.validate(full=True)
        asked = {name: arguments[name] for name in ("include_headers", "headers_seen") if name in arguments}
        assert batch.schema.equals(column_schema(**asked))
    rows = [row for batch in batches for row in batch.drop_columns(["timestamp"]).to_pylist()]
    # Python's datetime ends with the year 9999, Arrow's and Spark's timestamps 284,000 years later.
    times = [time for batch in batches for time in batch.column("timestamp").cast(pa.int64()).to_pylist()]
    return [row | {"timestamp_us": time} for row, time in zip(rows, times, strict=True)]


def as_row(record: Record) -> tuple[Any, ...]:
    return record.key, record.value, record.timestamp_ms, record.headers, record.offset


def row_of(row: dict[str, Any]) -> tuple[Any, ...]:
    assert (row["topic"], row["partition"]) == ("t", 3)
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    return row["key"], row["value"], row["timestamp_us"] // 1000, headers, row["offset"]


@settings(max_examples=examples(60), deadline=None)
@given(batches=st.lists(st.tuples(RECORDS, CODEC_VALUES), min_size=1, max_size=4), rows_max=st.integers(1, 50))
def test_every_record_of_every_codec_is_decoded(batches: list[tuple[list[Record], int]], rows_max: int) -> None:
    data, expected, offset = b"", [], 1000
    for records, codec in batches:
        batch = build_batch(records, base_offset=offset, codec=codec)
        expected += [as_row(record) for record in decode_records(batch)]
        data += batch
        offset += len(records)
    assert [row_of(row) for row in decoded(data, include_headers=True, rows_max=rows_max)] == expected
    without = decoded(data)
    assert [(row["key"], row["value"], row["offset"]) for row in without] == [(e[0], e[1], e[4]) for e in expected]


@settings(max_examples=examples(60), deadline=None)
@given(records=RECORDS, codec=CODEC_VALUES, partitions=st.integers(1, 7), batch_bytes=st.integers(100, 2000))
def test_what_is_encoded_decodes_to_the_same(
    records: list[Record], codec: int, partitions: int, batch_bytes: int
) -> None:
    rows = record_batch(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "timestamp_ms": pa.array([record.timestamp_ms for record in records], pa.int64()),
            "headers": pa.array(
                [[{"key": key, "value": value} for key, value in record.headers] for record in records],
                pa.list_(HEADER_TYPE),
            ),
        }
    )
    encoder = BatchEncoder(partitions, codec=codec, batch_bytes=batch_bytes)
    written: dict[int, list[Record]] = {partition: [] for partition in range(partitions)}
    for encoded in encoder.encode(rows, now_ms=0):
        seal_batch(encoded.data, ProducerIdentity(7, 0), 0)
        assert check_batch(bytes(encoded.data)).record_count == encoded.record_count
        written[encoded.partition] += decode_records(bytes(encoded.data))
    for partition, got in written.items():
        keyed = [record for record in records if record.key is not None]
        expected = [record for record in keyed if partition_for_key(record.key or b"", partitions) == partition]
        assert [r._replace(offset=-1) for r in got if r.key is not None] == expected
    unkeyed = [record._replace(offset=-1) for got in written.values() for record in got if record.key is None]
    assert sorted(unkeyed, key=repr) == sorted((record for record in records if record.key is None), key=repr)


@settings(max_examples=examples(200), deadline=None)
@given(key=st.binary(max_size=40))
def test_both_murmur2_agree(key: bytes) -> None:
    data = np.frombuffer(b"??" + key + b"??", np.uint8)
    data.flags.writeable = False
    assert kernels.murmur2_kernel(data, 2, 2 + len(key)) == murmur2(key)


@settings(max_examples=examples(300), deadline=None)
@given(
    records=RECORDS,
    mutations=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    include_headers=st.booleans(),
)
def test_hostile_bytes_under_a_right_crc_raise_or_decode_but_never_read_elsewhere(
    records: list[Record], mutations: list[tuple[int, int]], include_headers: bool
) -> None:
    batch = bytearray(build_batch(records))
    for position, byte in mutations:
        batch[21 + position % (len(batch) - 21)] = byte
    batch[21:23] = bytes([batch[21], batch[22] & 0xF8])  # uncompressed: the kernels are under test
    try:
        decoded(resealed(batch), include_headers=include_headers)
    except CorruptRecordsError as error:
        assert "t-3" in str(error)


@pytest.mark.parametrize("codec", sorted(CODECS.values()))
def test_every_flipped_bit_behind_the_crc_is_noticed(codec: int) -> None:
    batch = build_batch([Record(b"key", b"value", 5), Record(None, b"x" * 50, 6)], codec=codec)
    for position in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptRecordsError, match="t-3"):
            decoded(bytes(damaged))


def test_a_part_of_a_batch_at_the_end_is_ignored() -> None:
    first = build_batch([Record(b"a", b"1", 5)])
    second = build_batch([Record(b"b", b"2", 5)], base_offset=1)
    for end in range(len(second)):
        assert [row["key"] for row in decoded(first + second[:end])] == [b"a"]


def test_only_the_wanted_offsets_come() -> None:
    data = b"".join(
        build_batch([Record(b"%d" % (base + i), b"", 0) for i in range(10)], base_offset=base) for base in (0, 10, 20)
    )
    assert [row["offset"] for row in decoded(data, start_offset=5, end_offset=23)] == list(range(5, 23))
    assert decoded(data, start_offset=30) == []


def test_control_batches_are_skipped_and_gaps_are_kept() -> None:
    data = build_batch([Record(b"a", b"1", 5)], base_offset=3)
    data += build_batch([Record(b"\0\0\0\1", b"\0\0\0\0\0\0", 5)], base_offset=4, attributes=0x30)
    data += build_batch([Record(b"b", b"2", 5)], base_offset=90)
    assert [row["offset"] for row in decoded(data)] == [3, 90]


def test_log_append_time_replaces_the_producers_timestamps() -> None:
    batch = bytearray(build_batch([Record(b"a", b"1", 5), Record(b"b", b"2", 6)], attributes=8))
    batch[35:43] = struct.pack(">q", 77)
    rows = decoded(resealed(batch))
    assert [(row_of({**row, "headers": None})[2], row["timestampType"]) for row in rows] == [(77, 1), (77, 1)]


@pytest.mark.parametrize("timestamp_ms", [-(2**63), -(2**63) // 1000, -1, 253_402_300_800_000, 2**63 - 1])
def test_a_timestamp_beyond_what_arrow_holds_does_not_stop_the_reader(timestamp_ms: int) -> None:
    (row,) = decoded(build_batch([Record(b"a", b"1", timestamp_ms)]))
    most_ms = (2**63 - 1) // 1000
    assert row["timestamp_us"] == min(max(timestamp_ms, -most_ms), most_ms) * 1000


def test_batches_that_overlap_are_corrupt() -> None:
    batch = build_batch([Record(b"a", b"1", 5)], base_offset=3)
    with pytest.raises(CorruptRecordsError, match="offsets do not ascend"):
        decoded(batch + batch)


def test_a_count_beyond_the_bytes_takes_no_memory() -> None:
    batch = bytearray(build_batch([Record(b"a", b"1", 5)]))
    batch[23:27] = struct.pack(">i", 2**31 - 1)
    batch[57:61] = struct.pack(">i", 2**31 - 1)
    with pytest.raises(CorruptRecordsError, match="number of records"):
        decoded(resealed(batch))


def test_a_header_key_that_is_not_utf8_is_corrupt() -> None:
    batch = bytearray(build_batch([Record(b"a", b"1", 5, (("??", b"v"),))]))
    at = batch.index(b"??")
    batch[at : at + 2] = b"\xff\xfe"
    with pytest.raises(CorruptRecordsError, match="not UTF-8"):
        decoded(resealed(batch), include_headers=True)


def test_one_record_larger_than_the_batch_goes_alone() -> None:
    rows = record_batch({"value": pa.array([b"a", b"b" * 500_000, b"c"], pa.binary())})
    batches = list(BatchEncoder(1, batch_bytes=1000).encode(rows, now_ms=0))
    assert [encoded.record_count for encoded in batches] == [1, 1, 1]


def test_rows_without_a_key_are_spread_evenly() -> None:
    rows = record_batch({"value": pa.array([b"x" * 93] * 6000, pa.binary())})
    counts = [0] * 6
    for encoded in BatchEncoder(6, sticky_bytes=10_000).encode(rows, now_ms=0):
        counts[encoded.partition] += encoded.record_count
    assert counts == [1000] * 6


def test_an_empty_key_is_not_a_missing_one() -> None:
    rows = record_batch({"key": pa.array([b"", None], pa.binary()), "value": pa.array([None, b""], pa.binary())})
    records = []
    for encoded in BatchEncoder(1).encode(rows, now_ms=0):
        records += decode_records(bytes(encoded.data))
    assert [(record.key, record.value) for record in records] == [(b"", None), (None, b"")]


def test_sliced_columns_are_encoded_from_their_slice() -> None:
    rows = record_batch(
        {
            "key": pa.array(["a", None, "c", "d"]),
            "value": pa.array(["1", "2", None, "4"]),
            "headers": pa.array(
                [None, [{"key": "h", "value": b"1"}], [], [{"key": "i", "value": None}]], pa.list_(HEADER_TYPE)
            ),
        }
    ).slice(1, 3)
    (encoded,) = BatchEncoder(1).encode(rows, now_ms=9)
    records = decode_records(bytes(encoded.data))
    assert [(record.key, record.value, record.headers) for record in records] == [
        (None, b"2", (("h", b"1"),)),
        (b"c", None, ()),
        (b"d", b"4", (("i", None),)),
    ]


def test_a_given_partition_goes_before_the_key() -> None:
    rows = record_batch(
        {
            "key": pa.array([b"foobar"] * 3, pa.binary()),
            "value": pa.array([b"1", b"2", b"3"], pa.binary()),
            "partition": pa.array([5, None, 2], pa.int32()),
        }
    )
    placed = {encoded.partition for encoded in BatchEncoder(6).encode(rows, now_ms=0)}
    assert placed == {5, partition_for_key(b"foobar", 6), 2}


@pytest.mark.parametrize("partition", [-1, 6])
def test_a_partition_that_the_topic_lacks_is_named(partition: int) -> None:
    rows = record_batch({"value": pa.array([b"1"], pa.binary()), "partition": pa.array([partition], pa.int32())})
    with pytest.raises(ValueError, match=f"partition {partition} in the data"):
        list(BatchEncoder(6).encode(rows, now_ms=0))


def test_the_oracle_sees_as_many_batches_as_the_scan() -> None:
    data = b"".join(build_batch([Record(b"a", b"1", 5)], base_offset=base) for base in range(5))
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    assert kernels.count_batches(array) == len(list(iterate_batches(data)))


@pytest.mark.parametrize("codec", sorted(CODECS.values()))
def test_whether_a_record_has_headers_is_told_without_them(codec: int) -> None:
    without = build_batch([Record(b"k", b"v", 0), Record(None, None, 0)], codec=codec)
    some = build_batch([Record(b"k", b"v", 0), Record(None, b"", 0, (("h", None),))], base_offset=2, codec=codec)
    assert [row["seen"] for row in decoded(bytes(without), headers_seen="seen")] == [False, False]
    assert [row["seen"] for row in decoded(bytes(some), headers_seen="seen")] == [True, True]
    assert all(row["seen"] for row in decoded(bytes(without + some), headers_seen="seen")[2:])
    both = decoded(bytes(some), headers_seen="seen", include_headers=True)
    assert [(row["headers"], row["seen"]) for row in both] == [(None, True), ([{"key": "h", "value": None}], True)]
