"""Converts record batches to Arrow: the result of a fetch becomes the columns of Spark's `format("kafka")`.

For Spark tasks and tools only; never imported by a broker (numba and Arrow cost 91 MiB and most of a second). Invalid
bytes raise CorruptRecordsError with the partition and the batch's offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from headwater.logtier.records import columns_kernels as kernels
from headwater.logtier.records.batch import (
    ATTRIBUTES,
    COMPRESSION_MASK,
    CONTROL,
    DECOMPRESSED_BYTES_MAX,
    PRODUCER_ID,
    TRANSACTIONAL,
    Record,
    build_batch,
)
from headwater.logtier.records.batch import RECORDS as HEADER_BYTES
from headwater.logtier.records.compression import Buffer, CorruptRecordsError, decompress

__all__ = ["CorruptRecordsError", "column_schema", "decode_columns", "warm_decoder"]

# Rows of one Arrow batch: large enough for negligible per-batch costs, small enough for Spark's off-heap memory.
ROWS_MAX = 20_000
# Bytes of records decoded at once; far below the 2 GiB limit of Arrow's 32-bit offsets, even with an additional batch
# of the largest decompressed size.
GROUP_BYTES = 16 << 20

_KEY_VALUE_HEADERS = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_Ints = npt.NDArray[np.int64]
_PRODUCER_ID = struct.Struct(">q")


def column_schema(*, include_headers: bool = False, headers_seen: str | None = None) -> pa.Schema:
    """Return the columns of `format("kafka")`, with its order, names and types, followed by `headers_seen`."""
    fields: list[pa.Field[Any]] = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if include_headers:
        # Spark names the elements of an array "element".
        fields.append(pa.field("headers", pa.list_(pa.field("element", _KEY_VALUE_HEADERS))))
    if headers_seen is not None:
        fields.append(pa.field(headers_seen, pa.bool_()))
    return pa.schema(fields)


def read_only(buffer: Any, dtype: Any = np.uint8) -> npt.NDArray[Any]:
    """Return a read-only array over a buffer, so that a kernel is compiled once for all types of buffers."""
    array = np.frombuffer(buffer, dtype=dtype) if buffer is not None else np.zeros(0, dtype=dtype)
    array.flags.writeable = False
    return array


def decode_columns(
    records: Buffer,
    topic: str,
    partition: int,
    *,
    start_offset: int = 0,
    end_offset: int = 2**63 - 1,
    include_headers: bool = False,
    headers_seen: str | None = None,
    aborted: Sequence[tuple[int, int]] = (),
    rows_max: int = ROWS_MAX,
) -> Iterator[pa.RecordBatch]:
    """Decode whole record batches to Arrow, restricted to offsets in [start_offset, end_offset).

    Batches outside the range, control batches and batches of the `aborted` transactions, (producer id, first offset) as
    in a fetch response, are skipped; a truncated last batch is ignored. CRCs of all decoded batches are checked. A
    column named `headers_seen` tells whether the record, or one decoded together with it, has headers.
    """
    if len(records) < HEADER_BYTES:
        return
    data = read_only(records)
    where = f"{topic}-{partition}"
    count = kernels.count_batches(data)
    if count < 0:
        raise CorruptRecordsError(f"{where}: {kernels.ERRORS[count]} in the fetched batches")
    table = np.empty((count, kernels.FIELDS), np.int64)
    code, row = kernels.scan_batches(data, table)
    if code:
        raise _corrupt(where, table, row, code)
    last = table[:, kernels.BASE_OFFSET] + table[:, kernels.LAST_OFFSET_DELTA]
    overlapping = np.flatnonzero(table[1:, kernels.BASE_OFFSET] <= last[:-1])
    if len(overlapping):
        raise _corrupt(where, table, int(overlapping[0]) + 1, kernels.BAD_OFFSET)
    wanted = (last >= start_offset) & (table[:, kernels.BASE_OFFSET] < end_offset) & (table[:, kernels.COUNT] > 0)
    wanted &= (table[:, kernels.CODEC_AND_FLAGS] & CONTROL) == 0
    if aborted:
        wanted &= ~_aborted_batches(memoryview(records), table, aborted)
    table = table[wanted]
    _check_crcs(memoryview(records), table, where)
    constants = _Constants(topic, partition, headers_seen)
    for group, sources in _groups(memoryview(records), data, table, where):
        decoded = _decode_group(group, sources, where, include_headers)
        low, high = np.searchsorted(decoded.offsets, [start_offset, end_offset])
        for begin in range(int(low), int(high), rows_max):
            yield constants.record_batch(decoded, begin, min(rows_max, int(high) - begin))


def _corrupt(where: str, table: _Ints, row: int, code: int) -> CorruptRecordsError:
    offset = int(table[row, kernels.BASE_OFFSET])
    return CorruptRecordsError(f"{where}: the record batch at offset {offset} is corrupt: {kernels.ERRORS[code]}")


def _aborted_batches(records: memoryview, table: _Ints, aborted: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Return which of the scanned batches belong to aborted transactions.

    A producer has one transaction at a time in a partition: from the first offset of an aborted one, its batches are
    excluded until its next marker, which is the abort marker.
    """
    left_out = np.zeros(len(table), np.bool_)
    flags = table[:, kernels.CODEC_AND_FLAGS]
    last = table[:, kernels.BASE_OFFSET] + table[:, kernels.LAST_OFFSET_DELTA]
    coming = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    producers: set[int] = set()
    for row in np.flatnonzero(flags & (TRANSACTIONAL | CONTROL)).tolist():
        while coming and coming[-1][1] <= last[row]:
            producers.add(coming.pop()[0])
        (producer_id,) = _PRODUCER_ID.unpack_from(records, int(table[row, kernels.BATCH_START]) + PRODUCER_ID)
        if flags[row] & CONTROL:
            producers.discard(producer_id)
        else:
            left_out[row] = producer_id in producers
    return left_out


def _check_crcs(records: memoryview, table: _Ints, where: str) -> None:
    starts = (table[:, kernels.BATCH_START] + ATTRIBUTES).tolist()
    ends = table[:, kernels.BATCH_END].tolist()
    expected = table[:, kernels.CRC].tolist()
    for row, (start, end, crc) in enumerate(zip(starts, ends, expected, strict=True)):
        if crc32c(records[start:end]) != crc:
            offset = int(table[row, kernels.BASE_OFFSET])
            raise CorruptRecordsError(f"{where}: the record batch at offset {offset} is corrupt: its CRC is wrong")


@dataclass(slots=True)
class _Source:
    """Consecutive batches whose (decompressed) records are in one buffer."""

    data: npt.NDArray[np.uint8]
    table: _Ints


def _groups(
    records: memoryview, data: npt.NDArray[np.uint8], table: _Ints, where: str
) -> Iterator[tuple[int, list[_Source]]]:
    """Split the batches into groups of about GROUP_BYTES of decompressed records: (bytes, sources)."""
    sources: list[_Source] = []
    group_bytes = 0
    codecs = table[:, kernels.CODEC_AND_FLAGS] & COMPRESSION_MASK
    sizes = table[:, kernels.RECORDS_END] - table[:, kernels.RECORDS_START]
    row = 0
    while row < len(table):
        if codecs[row]:
            plain = _decompress(records, table, row, int(codecs[row]), where)
            source = _Source(read_only(plain), table[row : row + 1].copy())
            source.table[0, kernels.RECORDS_START] = 0
            source.table[0, kernels.RECORDS_END] = len(plain)
            group_bytes += len(plain)
            row += 1
        else:
            first = row
            while row < len(table) and not codecs[row] and (row == first or group_bytes < GROUP_BYTES):
                group_bytes += int(sizes[row])
                row += 1
            source = _Source(data, table[first:row])
        sources.append(source)
        if group_bytes >= GROUP_BYTES or row == len(table):
            yield group_bytes, sources
            sources, group_bytes = [], 0


def _decompress(records: memoryview, table: _Ints, row: int, codec: int, where: str) -> bytes:
    payload = records[int(table[row, kernels.RECORDS_START]) : int(table[row, kernels.RECORDS_END])]
    try:
        return decompress(codec, payload, limit_bytes=DECOMPRESSED_BYTES_MAX)
    except CorruptRecordsError as error:
        offset = int(table[row, kernels.BASE_OFFSET])
        raise CorruptRecordsError(f"{where}: the record batch at offset {offset} is corrupt: {error}") from error


@dataclass(slots=True)
class _Decoded:
    """The columns of one group, before their split into Arrow batches."""

    offsets: _Ints
    key: Any
    value: Any
    timestamps: Any
    timestamp_types: npt.NDArray[np.int32]
    headers: Any
    headers_seen: bool


def _buffer(array: Any) -> pa.Buffer:
    """Return Arrow's view of an array's memory, without a copy."""
    return pa.py_buffer(array)


def _binary(type_: Any, offsets: Any, data: Any, valid: npt.NDArray[np.bool_] | None) -> Any:
    bitmap = None
    if valid is not None and not valid.all():
        bitmap = _buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(type_, len(offsets) - 1, [bitmap, _buffer(offsets), _buffer(data)])


def _decode_group(group_bytes: int, sources: list[_Source], where: str, include_headers: bool) -> _Decoded:
    for source in sources:
        # Checked before any allocation: a malicious count must not allocate memory beyond its bytes.
        sizes = source.table[:, kernels.RECORDS_END] - source.table[:, kernels.RECORDS_START]
        impossible = np.flatnonzero(source.table[:, kernels.COUNT] > sizes)
        if len(impossible):
            raise _corrupt(where, source.table, int(impossible[0]), kernels.BAD_COUNT)
    counts = [int(source.table[:, kernels.COUNT].sum()) for source in sources]
    rows = sum(counts)
    offsets = np.empty(rows, np.int64)
    timestamps = np.empty(rows, np.int64)
    timestamp_types = np.empty(rows, np.int32)
    key_offsets = np.zeros(rows + 1, np.int32)
    value_offsets = np.zeros(rows + 1, np.int32)
    key_data = np.empty(group_bytes, np.uint8)
    value_data = np.empty(group_bytes, np.uint8)
    key_valid = np.empty(rows, np.bool_)
    value_valid = np.empty(rows, np.bool_)
    header_ranges = np.empty((rows, 2), np.int64)
    row = 0
    for source, count in zip(sources, counts, strict=True):
        code, bad = kernels.decode_batches(
            source.data,
            source.table,
            row,
            offsets,
            timestamps,
            timestamp_types,
            key_offsets,
            key_data,
            key_valid,
            value_offsets,
            value_data,
            value_valid,
            header_ranges,
        )
        if code:
            raise _corrupt(where, source.table, bad, code)
        row += count
    headers = None
    if include_headers:
        headers = _decode_headers(group_bytes, sources, counts, header_ranges, where)
    return _Decoded(
        offsets,
        _binary(pa.binary(), key_offsets, key_data, key_valid),
        _binary(pa.binary(), value_offsets, value_data, value_valid),
        pa.Array.from_buffers(pa.timestamp("us", "UTC"), rows, [None, _buffer(timestamps)]),
        timestamp_types,
        headers,
        bool((header_ranges[:, 1] - header_ranges[:, 0] > 1).any()),  # one byte: no headers
    )


def _decode_headers(
    group_bytes: int, sources: list[_Source], counts: list[int], header_ranges: _Ints, where: str
) -> Any:
    """Return the headers column; null for a record without headers, as in `format("kafka")`."""
    rows = sum(counts)
    list_offsets = np.zeros(rows + 1, np.int32)
    start = 0
    for source, count in zip(sources, counts, strict=True):
        code = kernels.count_headers(source.data, header_ranges, start, start + count, list_offsets)
        if code:
            raise _corrupt(where, source.table, 0, code)
        start += count
    total = int(list_offsets[rows])
    key_offsets = np.zeros(total + 1, np.int32)
    value_offsets = np.zeros(total + 1, np.int32)
    key_data = np.empty(group_bytes, np.uint8)
    value_data = np.empty(group_bytes, np.uint8)
    value_valid = np.empty(total, np.bool_)
    start = 0
    for source, count in zip(sources, counts, strict=True):
        code = kernels.decode_headers(
            source.data,
            header_ranges,
            start,
            start + count,
            list_offsets,
            key_offsets,
            key_data,
            value_offsets,
            value_data,
            value_valid,
        )
        if code:
            raise _corrupt(where, source.table, 0, code)
        start += count
    keys = _binary(pa.string(), key_offsets, key_data, None)
    try:
        keys.validate(full=True)  # the protocol requires UTF-8 keys, but the broker does not check them
    except pa.ArrowInvalid as error:
        offset = int(sources[0].table[0, kernels.BASE_OFFSET])
        raise CorruptRecordsError(f"{where}: a header's key at or after offset {offset} is not UTF-8") from error
    values: Any = _binary(pa.binary(), value_offsets, value_data, value_valid)
    elements = pa.StructArray.from_arrays([keys, values], fields=list(_KEY_VALUE_HEADERS))
    bitmap = _buffer(np.packbits(np.diff(list_offsets) > 0, bitorder="little"))
    return pa.Array.from_buffers(
        column_schema(include_headers=True).field("headers").type,
        rows,
        [bitmap, _buffer(list_offsets)],
        children=[elements],
    )


class _Constants:
    """The constant columns, created once and sliced."""

    def __init__(self, topic: str, partition: int, headers_seen: str | None) -> None:
        self._headers_seen = headers_seen
        self._topic = topic
        self._partition = partition
        self._topics: Any = pa.nulls(0, pa.string())
        self._partitions: Any = pa.nulls(0, pa.int32())

    def record_batch(self, decoded: _Decoded, start: int, rows: int) -> pa.RecordBatch:
        """Return one Arrow batch of the decoded rows [start, start + rows)."""
        if len(self._topics) < rows:
            self._topics = pa.repeat(pa.scalar(self._topic, pa.string()), rows)
            self._partitions = pa.array(np.full(rows, self._partition, np.int32))
        columns: list[Any] = [
            decoded.key.slice(start, rows),
            decoded.value.slice(start, rows),
            self._topics.slice(0, rows),
            self._partitions.slice(0, rows),
            pa.array(decoded.offsets[start : start + rows]),
            decoded.timestamps.slice(start, rows),
            pa.array(decoded.timestamp_types[start : start + rows]),
        ]
        if decoded.headers is not None:
            columns.append(decoded.headers.slice(start, rows))
        if self._headers_seen is not None:
            columns.append(pa.repeat(pa.scalar(decoded.headers_seen), rows))
        schema = column_schema(include_headers=decoded.headers is not None, headers_seen=self._headers_seen)
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def warm_decoder() -> None:
    """Compile the decoding kernels, or load them from numba's cache."""
    batch = build_batch([Record(b"key", b"value", 0, (("header", b"value"),)), Record(None, None, 0)])
    for _ in decode_columns(batch, "warm", 0, include_headers=True):
        pass
