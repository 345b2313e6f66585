"""Whatever the bytes, decoding ends in records or in CorruptRecordsError, never in anything else."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.log.producers.producer_snapshot_codec import SnapshotError, decode_snapshot
from headwater.logtier.records.batch import (
    CorruptRecordsError,
    Record,
    build_batch,
    check_batch,
    decode_records,
    iterate_batches,
)
from headwater.logtier.records.compression import CODECS, compress, decompress

codecs = st.sampled_from(sorted(CODECS.values()))
records = st.builds(
    Record,
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=200),
    st.integers(-1, 2**62),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
    st.just(-1),
)


@given(st.lists(records, min_size=1, max_size=9), codecs, st.integers(0, 2**62))
def test_records_survive_the_round_trip(batch_records: list[Record], codec: int, base_offset: int) -> None:
    batch = build_batch(batch_records, base_offset=base_offset, codec=codec)
    check_batch(batch)
    decoded = decode_records(batch)
    assert [record._replace(offset=-1) for record in decoded] == batch_records
    assert [record.offset for record in decoded] == list(range(base_offset, base_offset + len(batch_records)))


@given(st.lists(records, min_size=1, max_size=3), codecs, st.data())
def test_any_changed_byte_gives_records_or_a_clear_error(
    batch_records: list[Record], codec: int, data: st.DataObject
) -> None:
    batch = bytearray(build_batch(batch_records, codec=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptRecordsError):
        for _, one in iterate_batches(batch):
            decode_records(one, limit_bytes=1 << 20)


@given(codecs, st.binary(max_size=300))
def test_any_bytes_decompress_to_bounded_data_or_a_clear_error(codec: int, data: bytes) -> None:
    with contextlib.suppress(CorruptRecordsError):
        assert len(decompress(codec, data, limit_bytes=1 << 16)) <= 1 << 16


@given(codecs, st.binary(max_size=3_000), st.data())
def test_a_damaged_compressed_payload_gives_data_or_a_clear_error(
    codec: int, plain: bytes, data: st.DataObject
) -> None:
    payload = bytearray(compress(codec, plain))
    if payload:
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    with contextlib.suppress(CorruptRecordsError):
        assert len(decompress(codec, payload[:cut], limit_bytes=1 << 16)) <= 1 << 16


@given(st.binary(max_size=200))
def test_any_bytes_are_a_snapshot_or_refused(data: bytes) -> None:
    with contextlib.suppress(SnapshotError):
        decode_snapshot(data)
