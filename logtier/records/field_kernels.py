"""Fields of batches and records for compiled loops: integers of fixed size, and zigzag varints.

Loops in other modules include these functions in their machine code, where LLVM inlines them. numba's cache depends
only on the source of the loop: after a change in this module the caches (`*.nbi`) must be deleted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.logtier.records.columns_compiled import kernel

__all__ = ["i32", "i64", "put_varint", "u32", "varint", "varint_size"]

# numba's machine integers; typed Any because they mix with Python's integers.
_I64: Any = np.int64
_U64: Any = np.uint64
_U8: Any = np.uint8


@kernel
def u32(data: Any, position: int) -> Any:
    """Read four bytes, unsigned."""
    return (
        (_I64(data[position]) << 24)
        | (_I64(data[position + 1]) << 16)
        | (_I64(data[position + 2]) << 8)
        | _I64(data[position + 3])
    )


@kernel
def i32(data: Any, position: int) -> Any:
    """Read four bytes, signed."""
    value = u32(data, position)
    return value - ((value >> 31) << 32)


@kernel
def i64(data: Any, position: int) -> Any:
    """Read eight bytes, signed."""
    return (i32(data, position) << 32) | u32(data, position + 4)


@kernel
def varint(data: Any, position: int, end: int) -> tuple[Any, Any]:
    """Read a zigzag varint of at most ten bytes; return (value, end), with a negative end for an error."""
    if position < end:
        byte = data[position]
        if byte < 128:
            value = _I64(byte)
            return (value >> 1) ^ -(value & 1), position + 1
    raw = _U64(0)
    shift = _U64(0)
    while position < end and shift < _U64(70):
        byte = data[position]
        position += 1
        raw |= _U64(byte & 0x7F) << shift
        if byte < 128:
            return _I64(raw >> _U64(1)) ^ -_I64(raw & _U64(1)), position
        shift += _U64(7)
    return _I64(0), -1


@kernel
def varint_size(value: int) -> Any:
    """Return the size of a zigzag varint, in bytes."""
    raw = _U64((value << 1) ^ (value >> 63))
    size = 1
    while raw >= _U64(128):
        raw >>= _U64(7)
        size += 1
    return size


@kernel
def put_varint(out: Any, position: int, value: int) -> Any:
    """Write a zigzag varint; return its end. `out` must have room."""
    raw = _U64((value << 1) ^ (value >> 63))
    while raw >= _U64(128):
        out[position] = _U8((raw & _U64(0x7F)) | _U64(0x80))
        position += 1
        raw >>= _U64(7)
    out[position] = _U8(raw)
    return position + 1
