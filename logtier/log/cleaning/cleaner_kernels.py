"""The compiled loops of the cleaner: the last offset of each key, and the records that stay.

Used in the cleaner process only; never imported by a broker (`records.columns_compiled` describes the compilation).
numba checks no index, so the kernels check every length against the remaining bytes first; they report invalid input by
a code, never by an exception.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.logtier.records.columns_compiled import kernel
from headwater.logtier.records.field_kernels import i32, i64, put_varint, u32, varint, varint_size

# numba's machine integers; typed Any because they mix with Python's integers.
_I64: Any = np.int64
_U64: Any = np.uint64

# Columns of the table of scanned batches, int64, a row a batch.
START = 0
END = 1
RECORDS_START = 2  # of the decompressed records
RECORDS_END = 3
BASE_OFFSET = 4
LAST_OFFSET = 5
ATTRIBUTES = 6
BASE_TIMESTAMP = 7
MAX_TIMESTAMP = 8
PRODUCER_ID = 9
PRODUCER_EPOCH = 10
COUNT = 11
CRC = 12
FLAGS = 13
FIELDS = 14

# Flags of a row, set between scanning and filtering.
DISCARD_RECORDS = 1  # of an aborted transaction, or an expired marker
RETAIN_EMPTY = 2  # the batch stays even without a record
START_HORIZON = 4  # a marker that may be removed after delete.retention.ms

# Columns of the table of results.
OUT_KIND = 0
OUT_START = 1
OUT_END = 2
OUT_BASE_TIMESTAMP = 3
OUT_MAX_TIMESTAMP = 4
OUT_COUNT = 5
OUT_HORIZON = 6
OUT_FIELDS = 7

# Kinds of results.
DROPPED = 0
ORIGINAL = 1
REWRITTEN = 2
EMPTIED = 3

# Columns of the table of a batch's records.
_RECORD_START = 0
_RECORD_END = 1
_RECORD_REST = 2  # what follows the timestamp delta
_RECORD_TIMESTAMP = 3
_RECORD_FIELDS = 4

# Codes.
FULL = 1
BAD_LENGTH = -1
BAD_MAGIC = -2
BAD_OFFSET = -3
BAD_COUNT = -4
BAD_RECORD = -5

ERRORS = {
    BAD_LENGTH: "its length is out of range",
    BAD_MAGIC: "its message format is not version 2",
    BAD_OFFSET: "its offsets are out of range or do not ascend",
    BAD_COUNT: "the number of its records does not fit",
    BAD_RECORD: "a field reaches beyond the end of its record",
}

_HEADER_BYTES = 61
_LOG_OVERHEAD = 12
_RECORD_BYTES_MIN = 7
_LOG_APPEND_TIME = 0x08
_CONTROL = 0x20
_DELETE_HORIZON = 0x40
# Maximum growth of the timestamp delta and the length of a rewritten record.
GROWTH_BYTES_PER_RECORD = 16


@kernel
def scan_batches(data: Any, table: Any, next_offset: int) -> tuple[int, int]:
    """Fill the table from the headers of the whole batches in `data`, at most one per row; return (rows, code or 0)."""
    position = 0
    row = 0
    while row < len(table) and len(data) - position >= _HEADER_BYTES:
        length = i32(data, position + 8)
        if length < _HEADER_BYTES - _LOG_OVERHEAD:
            return row, BAD_LENGTH
        if data[position + 16] != 2:
            return row, BAD_MAGIC
        if length > len(data) - position - _LOG_OVERHEAD:
            break
        base_offset = i64(data, position)
        last_delta = i32(data, position + 23)
        if base_offset < next_offset or last_delta < 0 or base_offset > _I64(0x7FFFFFFFFFFFFFFF) - last_delta - 1:
            return row, BAD_OFFSET
        count = i32(data, position + 57)
        if count < 0 or count > last_delta + 1:
            return row, BAD_COUNT
        end = position + _LOG_OVERHEAD + length
        table[row, START] = position
        table[row, END] = end
        table[row, RECORDS_START] = position + _HEADER_BYTES
        table[row, RECORDS_END] = end
        table[row, BASE_OFFSET] = base_offset
        table[row, LAST_OFFSET] = base_offset + last_delta
        table[row, ATTRIBUTES] = (_I64(data[position + 21]) << 8) | _I64(data[position + 22])
        table[row, BASE_TIMESTAMP] = i64(data, position + 27)
        table[row, MAX_TIMESTAMP] = i64(data, position + 35)
        table[row, PRODUCER_ID] = i64(data, position + 43)
        epoch = (_I64(data[position + 51]) << 8) | _I64(data[position + 52])
        table[row, PRODUCER_EPOCH] = epoch - ((epoch >> 15) << 16)
        table[row, COUNT] = count
        table[row, CRC] = u32(data, position + 17)
        table[row, FLAGS] = 0
        next_offset = base_offset + last_delta + 1
        position = end
        row += 1
    return row, 0


@kernel
def _rotate(value: Any, bits: int) -> Any:
    return (value << _U64(bits)) | (value >> _U64(64 - bits))


@kernel
def _sip_rounds(v0: Any, v1: Any, v2: Any, v3: Any, rounds: int) -> tuple[Any, Any, Any, Any]:
    for _ in range(rounds):
        v0 += v1
        v1 = _rotate(v1, 13) ^ v0
        v0 = _rotate(v0, 32)
        v2 += v3
        v3 = _rotate(v3, 16) ^ v2
        v0 += v3
        v3 = _rotate(v3, 21) ^ v0
        v2 += v1
        v1 = _rotate(v1, 17) ^ v2
        v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@kernel
def siphash(data: Any, start: int, end: int, seed: Any) -> tuple[Any, Any]:
    """Return SipHash-2-4 with 128 bits of data[start:end], under the key `seed` (two uint64).

    The key is random, so that no client can craft two keys with equal hashes, which would lose a record.
    """
    v0 = seed[0] ^ _U64(0x736F6D6570736575)
    v1 = seed[1] ^ _U64(0x646F72616E646F6D) ^ _U64(0xEE)
    v2 = seed[0] ^ _U64(0x6C7967656E657261)
    v3 = seed[1] ^ _U64(0x7465646279746573)
    position = start
    while end - position >= 8:
        word = _U64(0)
        for i in range(8):
            word |= _U64(data[position + i]) << _U64(8 * i)
        v3 ^= word
        v0, v1, v2, v3 = _sip_rounds(v0, v1, v2, v3, 2)
        v0 ^= word
        position += 8
    word = (_U64(end - start) & _U64(0xFF)) << _U64(56)
    for i in range(end - position):
        word |= _U64(data[position + i]) << _U64(8 * i)
    v3 ^= word
    v0, v1, v2, v3 = _sip_rounds(v0, v1, v2, v3, 2)
    v0 ^= word
    v2 ^= _U64(0xEE)
    v0, v1, v2, v3 = _sip_rounds(v0, v1, v2, v3, 4)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _U64(0xDD)
    v0, v1, v2, v3 = _sip_rounds(v0, v1, v2, v3, 4)
    return first, v0 ^ v1 ^ v2 ^ v3


@kernel
def _find_slot(slots: Any, first: Any, second: Any) -> Any:
    """Return the slot of a hash, or the empty slot for it; there always is an empty one."""
    count = _U64(len(slots))
    # Equivalent to a remainder but much cheaper: the upper half of a product.
    slot = ((first >> _U64(32)) * count) >> _U64(32)
    while slots[slot, 2] != _U64(0) and (slots[slot, 0] != first or slots[slot, 1] != second):
        slot += _U64(1)
        if slot == count:
            slot = _U64(0)
    return slot


@kernel
def _read_record(data: Any, position: int, end: int, records: Any, index: int) -> tuple[Any, Any, Any, Any, Any]:
    """Read a record: (end or a code below 0, offset delta, key start, key size, whether it has a value)."""
    start = position
    length, position = varint(data, position, end)
    if position < 0 or length < _RECORD_BYTES_MIN - 1 or length > end - position:
        return _I64(BAD_RECORD), _I64(0), _I64(0), _I64(0), False
    record_end = position + length
    timestamp_delta, position = varint(data, position + 1, record_end)
    if position < 0:
        return _I64(BAD_RECORD), _I64(0), _I64(0), _I64(0), False
    records[index, _RECORD_START] = start
    records[index, _RECORD_END] = record_end
    records[index, _RECORD_REST] = position
    records[index, _RECORD_TIMESTAMP] = timestamp_delta
    offset_delta, position = varint(data, position, record_end)
    if position < 0:
        return _I64(BAD_RECORD), _I64(0), _I64(0), _I64(0), False
    key_size, position = varint(data, position, record_end)
    if position < 0 or key_size < -1 or key_size > record_end - position:
        return _I64(BAD_RECORD), _I64(0), _I64(0), _I64(0), False
    key_start = position
    value_size, position = varint(data, position + max(key_size, 0), record_end)
    if position < 0 or value_size < -1 or value_size > record_end - position:
        return _I64(BAD_RECORD), _I64(0), _I64(0), _I64(0), False
    return record_end, offset_delta, key_start, key_size, value_size >= 0


@kernel
def _check_count(table: Any, row: int) -> bool:
    size = table[row, RECORDS_END] - table[row, RECORDS_START]
    return bool(table[row, COUNT] * _RECORD_BYTES_MIN <= size)


@kernel
def index_batches(
    data: Any, table: Any, start_offset: int, slots: Any, seed: Any, size: Any, size_max: int
) -> tuple[int, int]:
    """Put the keys of all records at or after `start_offset` into the map, except batches with DISCARD_RECORDS.

    `slots` has rows of (hash, hash, offset + 1); `size` (one int64) is the number of used slots. Returns (row, code):
    FULL at the first batch that does not fit.
    """
    scratch = np.empty((1, _RECORD_FIELDS), np.int64)
    for row in range(len(table)):
        if table[row, FLAGS] & DISCARD_RECORDS or table[row, LAST_OFFSET] < start_offset:
            continue
        if not _check_count(table, row):
            return row, BAD_COUNT
        position = table[row, RECORDS_START]
        end = table[row, RECORDS_END]
        last_delta = _I64(-1)
        for _ in range(table[row, COUNT]):
            position, delta, key_start, key_size, _ = _read_record(data, position, end, scratch, 0)
            if position < 0:
                return row, BAD_RECORD
            if delta <= last_delta or table[row, BASE_OFFSET] + delta > table[row, LAST_OFFSET]:
                return row, BAD_OFFSET
            last_delta = delta
            offset = table[row, BASE_OFFSET] + delta
            if key_size < 0 or offset < start_offset:
                continue
            first, second = siphash(data, key_start, key_start + key_size, seed)
            slot = _find_slot(slots, first, second)
            if slots[slot, 2] == _U64(0):
                if size[0] >= size_max:
                    return row, FULL
                size[0] += 1
                slots[slot, 0] = first
                slots[slot, 1] = second
            slots[slot, 2] = _U64(offset + 1)
        if position != end:
            return row, BAD_RECORD
    return len(table), 0


@kernel
def filter_batches(
    data: Any,
    table: Any,
    slots: Any,
    seed: Any,
    latest_offset: int,
    now_ms: int,
    delete_retention_ms: int,
    copies_originals: bool,
    out: Any,
    results: Any,
) -> tuple[int, int]:
    """Write the remaining records of each batch into `out`; return (row, code or 0).

    A record stays if it is after `latest_offset` (the end of the map) or the last of its key, unless it is a tombstone
    whose batch's delete horizon has passed (KIP-534). A batch whose records all stay is copied unchanged (if
    `copies_originals`); otherwise its records follow 61 bytes for a header. A batch that keeps tombstones or an
    expiring marker gets a delete horizon, as its new base timestamp, if it has none.
    """
    records_max = 1
    for row in range(len(table)):
        if not _check_count(table, row):
            return row, BAD_COUNT
        records_max = max(records_max, table[row, COUNT])
    records = np.empty((records_max, _RECORD_FIELDS), np.int64)
    out_position = _I64(0)
    for row in range(len(table)):
        attributes = table[row, ATTRIBUTES]
        flags = table[row, FLAGS]
        base_timestamp = table[row, BASE_TIMESTAMP]
        has_horizon = (attributes & _DELETE_HORIZON) != 0
        keeps_tombstones = not has_horizon or now_ms < base_timestamp
        position = table[row, RECORDS_START]
        end = table[row, RECORDS_END]
        kept = 0
        has_tombstones = False
        last_delta = _I64(-1)
        max_timestamp = _I64(-1)
        if not flags & DISCARD_RECORDS:
            for _ in range(table[row, COUNT]):
                position, delta, key_start, key_size, has_value = _read_record(data, position, end, records, kept)
                if position < 0:
                    return row, BAD_RECORD
                offset = table[row, BASE_OFFSET] + delta
                if delta <= last_delta or offset > table[row, LAST_OFFSET]:
                    return row, BAD_OFFSET
                last_delta = delta
                stays = True
                if not attributes & _CONTROL and offset <= latest_offset:
                    if key_size < 0:
                        stays = False
                    else:
                        first, second = siphash(data, key_start, key_start + key_size, seed)
                        slot = _find_slot(slots, first, second)
                        stays = offset + 1 >= _I64(slots[slot, 2]) and (has_value or keeps_tombstones)
                if stays:
                    max_timestamp = max(max_timestamp, base_timestamp + records[kept, _RECORD_TIMESTAMP])
                    has_tombstones |= not has_value
                    kept += 1
            if position != end:
                return row, BAD_RECORD
        results[row, OUT_KIND] = DROPPED
        results[row, OUT_START] = out_position
        results[row, OUT_COUNT] = kept
        results[row, OUT_MAX_TIMESTAMP] = table[row, MAX_TIMESTAMP]
        results[row, OUT_BASE_TIMESTAMP] = base_timestamp
        results[row, OUT_HORIZON] = has_horizon
        if kept == 0:
            if flags & RETAIN_EMPTY:
                results[row, OUT_KIND] = EMPTIED
                out_position += _HEADER_BYTES
        else:
            is_control = (attributes & _CONTROL) != 0
            starts_horizon = not has_horizon and ((has_tombstones and not is_control) or flags & START_HORIZON)
            if kept == table[row, COUNT] and not starts_horizon:
                results[row, OUT_KIND] = ORIGINAL
                if copies_originals:
                    size = table[row, END] - table[row, START]
                    out[out_position : out_position + size] = data[table[row, START] : table[row, END]]
                    out_position += size
            else:
                results[row, OUT_KIND] = REWRITTEN
                if not attributes & _LOG_APPEND_TIME:
                    results[row, OUT_MAX_TIMESTAMP] = max_timestamp
                out_position += _HEADER_BYTES
                if starts_horizon:
                    horizon = now_ms + delete_retention_ms
                    results[row, OUT_BASE_TIMESTAMP] = horizon
                    results[row, OUT_HORIZON] = 1
                    out_position = _put_records(data, records, kept, base_timestamp - horizon, out, out_position)
                else:
                    out_position = _copy_records(data, records, kept, out, out_position)
        results[row, OUT_END] = out_position
    return len(table), 0


@kernel
def _copy_records(data: Any, records: Any, count: int, out: Any, position: int) -> Any:
    """Copy records unchanged, adjacent ones at once."""
    index = 0
    while index < count:
        start = records[index, _RECORD_START]
        end = records[index, _RECORD_END]
        index += 1
        while index < count and records[index, _RECORD_START] == end:
            end = records[index, _RECORD_END]
            index += 1
        out[position : position + end - start] = data[start:end]
        position += end - start
    return position


@kernel
def _put_records(data: Any, records: Any, count: int, timestamp_shift: int, out: Any, position: int) -> Any:
    """Write records with timestamp deltas relative to another base."""
    for index in range(count):
        rest = records[index, _RECORD_REST]
        end = records[index, _RECORD_END]
        timestamp_delta = records[index, _RECORD_TIMESTAMP] + timestamp_shift
        position = put_varint(out, position, 1 + varint_size(timestamp_delta) + end - rest)
        out[position] = 0  # attributes: unused
        position = put_varint(out, position + 1, timestamp_delta)
        out[position : position + end - rest] = data[rest:end]
        position += end - rest
    return position
