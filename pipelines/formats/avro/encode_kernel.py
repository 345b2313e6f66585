"""The loop that runs writing programs: converts columns to consecutive Avro values."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from headwater.logtier.records.columns_compiled import kernel
from headwater.logtier.records.field_kernels import put_varint

END: Final = 0
NUMBER: Final = 1  # slot: a zigzag varint
BOOLEAN: Final = 2  # slot
DOUBLE: Final = 3  # slot; bits
FLOAT: Final = 4  # slot; bits
BYTES: Final = 5  # slot
FIXED: Final = 6  # slot, size
ENUM: Final = 7  # slot; below zero for a text that is no symbol
NULLABLE: Final = 8  # slot, branch of null, branch of the value, where it goes on behind null
REQUIRED: Final = 9  # slot
BRANCH: Final = 10  # branch of a union without null
LIST: Final = 11  # slot, where it goes on
NEXT: Final = 12
DECIMAL: Final = 13  # slot, size (-1: as few bytes as it takes)

OK: Final = 0
IS_NULL: Final = 1
WRONG_SIZE: Final = 2
NO_SYMBOL: Final = 3
TOO_LARGE: Final = 4
REASONS: Final = {
    IS_NULL: "it is null, and the schema has no null there",
    WRONG_SIZE: "its bytes are not as many as the schema has",
    NO_SYMBOL: "the schema's enum does not have its text",
    TOO_LARGE: "it has more digits than the schema's type holds",
}

DEPTH_MAX: Final = 64  # of lists in each other
_ROOM: Final = 32  # more than any value of fixed size takes

_I64: Any = np.int64
_U64: Any = np.uint64
_U8: Any = np.uint8


@kernel
def _put(out: Any, position: int, value: int, size: int) -> Any:
    """Write a number, little-endian; returns the next position."""
    for index in range(size):
        out[position + index] = _U8((value >> (8 * index)) & 0xFF)
    return position + size


@kernel
def encode(
    rows: int,
    begin: int,
    position: int,
    header: Any,
    code: Any,
    bases: Any,
    valid: Any,
    first: Any,
    second: Any,
    pool: Any,
    out: Any,
    offsets: Any,
    fault: Any,
) -> int:
    """Encode rows from `begin` on; returns the first row without room, or the number of rows.

    `bases` contains the start of each slot's entries in `valid`, `first` and `second`. An unwritable row ends the loop;
    `fault` then holds the reason and the slot.
    """
    indexes = np.zeros(DEPTH_MAX + 1, np.int64)
    lasts = np.zeros(DEPTH_MAX + 1, np.int64)
    bodies = np.zeros(DEPTH_MAX + 1, np.int64)
    room = len(out)
    for row in range(begin, rows):
        offsets[row] = position
        if position + len(header) + _ROOM > room:
            return row
        for index in range(len(header)):
            out[position] = header[index]
            position += 1
        depth = 0
        indexes[0] = row
        pc = 0
        while code[pc] != END:
            op = code[pc]
            if position + _ROOM > room:
                return row
            if op == BRANCH:
                position = put_varint(out, position, code[pc + 1])
                pc += 2
                continue
            if op == NEXT:
                indexes[depth] += 1
                if indexes[depth] < lasts[depth]:
                    pc = bodies[depth]
                    continue
                depth -= 1
                out[position] = 0
                position += 1
                pc += 1
                continue
            slot = code[pc + 1]
            at = bases[slot] + indexes[depth]
            if op == NUMBER:
                position = put_varint(out, position, first[at])
                pc += 2
            elif op == BYTES:
                size = second[at]
                if position + size + _ROOM > room:
                    return row
                position = put_varint(out, position, size)
                start = first[at]
                for index in range(size):
                    out[position + index] = pool[start + index]
                position += size
                pc += 2
            elif op == NULLABLE:
                if valid[at]:
                    position = put_varint(out, position, code[pc + 3])
                    pc += 5
                else:
                    position = put_varint(out, position, code[pc + 2])
                    pc = code[pc + 4]
            elif op == REQUIRED:
                if not valid[at]:
                    fault[0] = IS_NULL
                    fault[1] = slot
                    return row
                pc += 2
            elif op == DOUBLE:
                position = _put(out, position, first[at], 8)
                pc += 2
            elif op == FLOAT:
                position = _put(out, position, first[at], 4)
                pc += 2
            elif op == BOOLEAN:
                out[position] = first[at]
                position += 1
                pc += 2
            elif op == FIXED:
                size = second[at]
                if size != code[pc + 2]:
                    fault[0] = WRONG_SIZE
                    fault[1] = slot
                    return row
                if position + size + _ROOM > room:
                    return row
                start = first[at]
                for index in range(size):
                    out[position + index] = pool[start + index]
                position += size
                pc += 3
            elif op == ENUM:
                if first[at] < 0:
                    fault[0] = NO_SYMBOL
                    fault[1] = slot
                    return row
                position = put_varint(out, position, first[at])
                pc += 2
            elif op == LIST:
                count = second[at]
                if count == 0:
                    out[position] = 0
                    position += 1
                    pc = code[pc + 2]
                else:
                    position = put_varint(out, position, count)
                    depth += 1
                    indexes[depth] = first[at]
                    lasts[depth] = first[at] + count
                    bodies[depth] = pc + 3
                    pc += 3
            else:  # DECIMAL
                low = _U64(first[at])
                high = second[at]
                size = 16
                filler = _U8(0xFF) if high < 0 else _U8(0)
                while size > 1:
                    # A byte is left out if it says no more than the sign of the next one does.
                    top = _decimal_byte(low, high, size - 1)
                    under = _decimal_byte(low, high, size - 2)
                    if top != filler or (under >= 128) != (high < 0):
                        break
                    size -= 1
                if code[pc + 2] < 0:
                    position = put_varint(out, position, size)
                else:
                    whole = code[pc + 2]
                    if size > whole:
                        fault[0] = TOO_LARGE
                        fault[1] = slot
                        return row
                    if position + whole + _ROOM > room:
                        return row
                    for _ in range(whole - size):
                        out[position] = filler
                        position += 1
                for index in range(size):
                    out[position] = _decimal_byte(low, high, size - 1 - index)
                    position += 1
                pc += 3
        offsets[row + 1] = position
    return rows


@kernel
def _decimal_byte(low: Any, high: Any, index: int) -> Any:
    """Return a byte of a 128-bit number; index 0 is the least significant."""
    if index < 8:
        return _U8((low >> _U64(8 * index)) & _U64(0xFF))
    return _U8((_U64(high) >> _U64(8 * (index - 8))) & _U64(0xFF))
