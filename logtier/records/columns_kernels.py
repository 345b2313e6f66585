"""The compiled loops of `columns` and `columns_encode`: record bytes to column buffers and back.

Compiled by numba on first use and cached on disk (`columns_compiled`). numba checks no index, so the kernels check
every length against the remaining bytes first; they report invalid input by a code, never by an exception. Layouts are
those of Kafka's message format v2 (protocol guide, "Record Batch" and "Record"). All input arrays are read-only views
(one compilation each for all types of buffers).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.logtier.records.columns_compiled import kernel
from headwater.logtier.records.field_kernels import i32, i64, put_varint, u32, varint, varint_size

__all__ = [
    "BASE_OFFSET",
    "BASE_TIMESTAMP",
    "BATCH_END",
    "BATCH_START",
    "CODEC_AND_FLAGS",
    "COUNT",
    "CRC",
    "ERRORS",
    "FIELDS",
    "LAST_OFFSET_DELTA",
    "MAX_TIMESTAMP",
    "RECORDS_END",
    "RECORDS_START",
    "assign_partitions",
    "count_batches",
    "count_headers",
    "decode_batches",
    "decode_headers",
    "encode_rows",
    "murmur2_kernel",
    "order_by_partition",
    "scan_batches",
]

# numba's machine integers; typed Any because they mix with Python's integers.
_I64: Any = np.int64
_U64: Any = np.uint64

# The fields of a scanned batch: columns of an int64 table with one row a batch.
BATCH_START = 0
BATCH_END = 1
RECORDS_START = 2  # of the decompressed records
RECORDS_END = 3
BASE_OFFSET = 4
LAST_OFFSET_DELTA = 5
CODEC_AND_FLAGS = 6
BASE_TIMESTAMP = 7
MAX_TIMESTAMP = 8
COUNT = 9
CRC = 10
FIELDS = 11

_LOG_OVERHEAD = 12  # base offset and length
_HEADER_BYTES = 61
_LENGTH_MIN = _HEADER_BYTES - _LOG_OVERHEAD
_LOG_APPEND_TIME = 8
# The smallest record: seven one-byte varints and attributes.
_RECORD_BYTES_MIN = 7
# Largest milliseconds that fit into Arrow's microseconds (year 294247). A producer may send any timestamp: greater ones
# are clamped, since a record that no reader can pass is worse than one with the latest possible time.
_TIMESTAMP_MS_MAX = 0x7FFFFFFFFFFFFFFF // 1000

TRUNCATED = -1
BAD_LENGTH = -2
BAD_OFFSET = -3
BAD_COUNT = -4
BAD_MAGIC = -5
TRAILING_BYTES = -6

ERRORS = {
    TRUNCATED: "a field reaches beyond the end of its record",
    BAD_LENGTH: "a length is out of range",
    BAD_OFFSET: "offsets do not ascend within the batch's range",
    BAD_COUNT: "the number of records does not fit the batch",
    BAD_MAGIC: "the message format is not version 2",
    TRAILING_BYTES: "bytes follow the last field",
}


@kernel
def count_batches(data: Any) -> int:
    """Return the number of whole batches (a truncated last batch is usual in a fetch), or an error code."""
    position = 0
    count = 0
    while len(data) - position >= _HEADER_BYTES:
        length = i32(data, position + 8)
        if length < _LENGTH_MIN:
            return BAD_LENGTH
        if length > len(data) - position - _LOG_OVERHEAD:
            break
        position += _LOG_OVERHEAD + length
        count += 1
    return count


@kernel
def scan_batches(data: Any, table: Any) -> tuple[int, int]:
    """Fill the table from the headers of the batches counted by `count_batches`; return (code or 0, row)."""
    position = 0
    for row in range(len(table)):
        length = i32(data, position + 8)
        table[row, BATCH_START] = position
        table[row, BATCH_END] = position + _LOG_OVERHEAD + length
        table[row, RECORDS_START] = position + _HEADER_BYTES
        table[row, RECORDS_END] = position + _LOG_OVERHEAD + length
        base_offset = i64(data, position)
        table[row, BASE_OFFSET] = base_offset
        if data[position + 16] != 2:
            return BAD_MAGIC, row
        table[row, CRC] = u32(data, position + 17)
        table[row, CODEC_AND_FLAGS] = (_I64(data[position + 21]) << 8) | _I64(data[position + 22])
        last_delta = i32(data, position + 23)
        table[row, LAST_OFFSET_DELTA] = last_delta
        table[row, BASE_TIMESTAMP] = i64(data, position + 27)
        table[row, MAX_TIMESTAMP] = i64(data, position + 35)
        count = i32(data, position + 57)
        table[row, COUNT] = count
        if base_offset < 0 or last_delta < 0 or base_offset > _I64(0x7FFFFFFFFFFFFFFF) - last_delta - 1:
            return BAD_OFFSET, row
        if count < 0 or count > last_delta + 1:
            return BAD_COUNT, row
        position += _LOG_OVERHEAD + length
    return 0, 0


@kernel
def decode_batches(
    data: Any,
    table: Any,
    row: int,
    offsets: Any,
    timestamps_us: Any,
    timestamp_types: Any,
    key_offsets: Any,
    key_data: Any,
    key_valid: Any,
    value_offsets: Any,
    value_data: Any,
    value_valid: Any,
    header_ranges: Any,
) -> tuple[int, int]:
    """Decode the records in `data` of all batches of the table into the columns from `row` on.

    The columns have room for the table's counts, the data columns for all bytes of the records sections.
    `header_ranges` gets the position of each record's headers. Returns (error code or 0, row in the table).
    """
    key_end = key_offsets[row]
    value_end = value_offsets[row]
    for batch in range(len(table)):
        position = table[batch, RECORDS_START]
        records_end = table[batch, RECORDS_END]
        count = table[batch, COUNT]
        if count * _RECORD_BYTES_MIN > records_end - position:
            return BAD_COUNT, batch
        base_timestamp = table[batch, BASE_TIMESTAMP]
        append_time = (table[batch, CODEC_AND_FLAGS] & _LOG_APPEND_TIME) != 0
        last_delta = _I64(-1)
        for _ in range(count):
            length, position = varint(data, position, records_end)
            if position < 0:
                return TRUNCATED, batch
            if length < _RECORD_BYTES_MIN - 1 or length > records_end - position:
                return BAD_LENGTH, batch
            end = position + length
            position += 1  # attributes: unused
            delta, position = varint(data, position, end)
            if position < 0:
                return TRUNCATED, batch
            timestamp = table[batch, MAX_TIMESTAMP] if append_time else base_timestamp + delta
            timestamps_us[row] = min(max(timestamp, -_TIMESTAMP_MS_MAX), _TIMESTAMP_MS_MAX) * 1000
            timestamp_types[row] = 1 if append_time else 0
            delta, position = varint(data, position, end)
            if position < 0:
                return TRUNCATED, batch
            if delta <= last_delta or delta > table[batch, LAST_OFFSET_DELTA]:
                return BAD_OFFSET, batch
            last_delta = delta
            offsets[row] = table[batch, BASE_OFFSET] + delta
            size, position = varint(data, position, end)
            if position < 0:
                return TRUNCATED, batch
            if size < -1 or size > end - position:
                return BAD_LENGTH, batch
            if size >= 0:
                key_data[key_end : key_end + size] = data[position : position + size]
                key_end += size
                position += size
            key_valid[row] = size >= 0
            key_offsets[row + 1] = key_end
            size, position = varint(data, position, end)
            if position < 0:
                return TRUNCATED, batch
            if size < -1 or size > end - position:
                return BAD_LENGTH, batch
            if size >= 0:
                value_data[value_end : value_end + size] = data[position : position + size]
                value_end += size
                position += size
            value_valid[row] = size >= 0
            value_offsets[row + 1] = value_end
            header_ranges[row, 0] = position
            header_ranges[row, 1] = end
            row += 1
            position = end
        if position != records_end:
            return TRAILING_BYTES, batch
    return 0, 0


@kernel
def count_headers(data: Any, header_ranges: Any, start: int, end: int, list_offsets: Any) -> int:
    """Fill the list offsets of rows [start, end), whose headers are in `data`; return an error code or 0."""
    total = _I64(list_offsets[start])
    for row in range(start, end):
        count, position = varint(data, header_ranges[row, 0], header_ranges[row, 1])
        if position < 0:
            return TRUNCATED
        if count < 0 or count * 2 > header_ranges[row, 1] - position:
            return BAD_COUNT
        total += count
        if total > 0x7FFFFFFF:
            return BAD_COUNT
        list_offsets[row + 1] = total
    return 0


@kernel
def decode_headers(
    data: Any,
    header_ranges: Any,
    start: int,
    end: int,
    list_offsets: Any,
    key_offsets: Any,
    key_data: Any,
    value_offsets: Any,
    value_data: Any,
    value_valid: Any,
) -> int:
    """Decode the headers of rows [start, end) into the columns of the list's elements; return an error code or 0."""
    at = _I64(list_offsets[start])
    key_end = key_offsets[at]
    value_end = value_offsets[at]
    for row in range(start, end):
        limit = header_ranges[row, 1]
        count, position = varint(data, header_ranges[row, 0], limit)
        for _ in range(count):
            size, position = varint(data, position, limit)
            if position < 0:
                return TRUNCATED
            if size < 0 or size > limit - position:
                return BAD_LENGTH
            key_data[key_end : key_end + size] = data[position : position + size]
            key_end += size
            position += size
            key_offsets[at + 1] = key_end
            size, position = varint(data, position, limit)
            if position < 0:
                return TRUNCATED
            if size < -1 or size > limit - position:
                return BAD_LENGTH
            if size >= 0:
                value_data[value_end : value_end + size] = data[position : position + size]
                value_end += size
                position += size
            value_valid[at] = size >= 0
            value_offsets[at + 1] = value_end
            at += 1
        if position != limit:
            return TRAILING_BYTES
    return 0


@kernel
def murmur2_kernel(data: Any, start: int, end: int) -> Any:
    """Return Kafka's murmur2 of data[start:end], as `headwater.logtier.client.partitioner.murmur2`."""
    mask = _U64(0xFFFFFFFF)
    multiplier = _U64(0x5BD1E995)
    length = end - start
    h = _U64(0x9747B28C) ^ _U64(length)
    position = start
    while end - position >= 4:
        k = (
            _U64(data[position])
            | (_U64(data[position + 1]) << _U64(8))
            | (_U64(data[position + 2]) << _U64(16))
            | (_U64(data[position + 3]) << _U64(24))
        )
        k = (k * multiplier) & mask
        k ^= k >> _U64(24)
        k = (k * multiplier) & mask
        h = (h * multiplier) & mask
        h ^= k
        position += 4
    rest = end - position
    if rest > 0:
        for index in range(rest):
            h ^= _U64(data[position + index]) << _U64(8 * index)
        h = (h * multiplier) & mask
    h ^= h >> _U64(13)
    h = (h * multiplier) & mask
    h ^= h >> _U64(15)
    return _I64(h)


@kernel
def assign_partitions(
    key_offsets: Any,
    key_data: Any,
    key_valid: Any,
    value_offsets: Any,
    partition_count: int,
    sticky: Any,
    sticky_bytes: int,
    partitions: Any,
) -> None:
    """Set the partition of every row without one (-1): by its key, or without a key the sticky partition.

    `sticky` holds (partition, bytes assigned to it): after `sticky_bytes` the next partition follows.
    """
    for row in range(len(partitions)):
        if partitions[row] >= 0:
            continue
        if key_valid[row]:
            h = murmur2_kernel(key_data, key_offsets[row], key_offsets[row + 1])
            partitions[row] = (h & 0x7FFFFFFF) % partition_count
        else:
            if sticky[1] >= sticky_bytes:
                sticky[0] = (sticky[0] + 1) % partition_count
                sticky[1] = 0
            partitions[row] = sticky[0]
            sticky[1] += value_offsets[row + 1] - value_offsets[row] + _RECORD_BYTES_MIN


@kernel
def order_by_partition(partitions: Any, starts: Any, order: Any) -> None:
    """Stable counting sort: `order` gets row numbers by partition, `starts` their start indexes (initially zeros)."""
    for row in range(len(partitions)):
        starts[partitions[row] + 1] += 1
    for partition in range(len(starts) - 1):
        starts[partition + 1] += starts[partition]
    ends = starts.copy()
    for row in range(len(partitions)):
        partition = partitions[row]
        order[ends[partition]] = row
        ends[partition] += 1


@kernel
def encode_rows(
    order: Any,
    start: int,
    end: int,
    key_offsets: Any,
    key_data: Any,
    key_valid: Any,
    value_offsets: Any,
    value_data: Any,
    value_valid: Any,
    timestamps_ms: Any,
    with_headers: bool,
    list_offsets: Any,
    header_key_offsets: Any,
    header_key_data: Any,
    header_value_offsets: Any,
    header_value_data: Any,
    header_value_valid: Any,
    out: Any,
    bytes_target: int,
) -> tuple[int, int, int]:
    """Encode rows order[start:end] as records into `out` until `bytes_target` is reached.

    Returns (rows encoded, bytes, largest timestamp). At least one row is encoded, unless it alone does not fit into
    `out`: then (0, bytes needed, 0).
    """
    position = 0
    base_timestamp = timestamps_ms[order[start]]
    max_timestamp = base_timestamp
    for index in range(start, end):
        row = order[index]
        key_size = _I64(key_offsets[row + 1] - key_offsets[row]) if key_valid[row] else _I64(-1)
        value_size = _I64(value_offsets[row + 1] - value_offsets[row]) if value_valid[row] else _I64(-1)
        offset_delta = _I64(index - start)
        timestamp_delta = timestamps_ms[row] - base_timestamp
        header_start = _I64(0)
        header_end = _I64(0)
        if with_headers:
            header_start = _I64(list_offsets[row])
            header_end = _I64(list_offsets[row + 1])
        size = (
            1
            + varint_size(timestamp_delta)
            + varint_size(offset_delta)
            + varint_size(key_size)
            + max(key_size, 0)
            + varint_size(value_size)
            + max(value_size, 0)
            + varint_size(header_end - header_start)
        )
        for header in range(header_start, header_end):
            header_key_size = _I64(header_key_offsets[header + 1] - header_key_offsets[header])
            header_value_size = _I64(-1)
            if header_value_valid[header]:
                header_value_size = _I64(header_value_offsets[header + 1] - header_value_offsets[header])
            size += varint_size(header_key_size) + header_key_size
            size += varint_size(header_value_size) + max(header_value_size, 0)
        needed = position + varint_size(size) + size
        if index > start and needed > bytes_target:
            return index - start, position, max_timestamp
        if needed > len(out):
            return 0, needed, 0
        position = put_varint(out, position, size)
        out[position] = 0  # attributes
        position = put_varint(out, position + 1, timestamp_delta)
        position = put_varint(out, position, offset_delta)
        position = put_varint(out, position, key_size)
        if key_size > 0:
            out[position : position + key_size] = key_data[key_offsets[row] : key_offsets[row + 1]]
            position += key_size
        position = put_varint(out, position, value_size)
        if value_size > 0:
            out[position : position + value_size] = value_data[value_offsets[row] : value_offsets[row + 1]]
            position += value_size
        position = put_varint(out, position, header_end - header_start)
        for header in range(header_start, header_end):
            header_key_size = _I64(header_key_offsets[header + 1] - header_key_offsets[header])
            position = put_varint(out, position, header_key_size)
            out[position : position + header_key_size] = header_key_data[
                header_key_offsets[header] : header_key_offsets[header + 1]
            ]
            position += header_key_size
            header_value_size = _I64(-1)
            if header_value_valid[header]:
                header_value_size = _I64(header_value_offsets[header + 1] - header_value_offsets[header])
            position = put_varint(out, position, header_value_size)
            if header_value_size > 0:
                out[position : position + header_value_size] = header_value_data[
                    header_value_offsets[header] : header_value_offsets[header + 1]
                ]
                position += header_value_size
        max_timestamp = max(max_timestamp, timestamps_ms[row])
    return end - start, position, max_timestamp
