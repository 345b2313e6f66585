"""Positions of the schema ids and payloads in arrays of framed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.schemas.schema_ids import HEADER_BYTES, NO_MAGIC, NO_VALUE, TOO_SHORT

Ints = npt.NDArray[np.int64]

ArrowArray: TypeAlias = Any
"""A pyarrow array; its stubs distinguish arrays by scalar types that are unknown here."""


@dataclass(frozen=True, slots=True)
class Frames:
    """The framed values of an array: the payloads' positions in `data`, and their schema ids, -1 if absent.

    `faults` contains the reason by row.
    """

    data: npt.NDArray[np.uint8]
    starts: Ints
    ends: Ints
    ids: Ints
    faults: dict[int, str]


def frames(values: ArrowArray) -> Frames:
    """Locate the ids and payloads in a binary array."""
    rows = len(values)
    offsets, data = binary_parts(values)
    starts, ends = offsets[:-1], offsets[1:]
    ids: Ints = np.full(rows, -1, np.int64)
    long_enough = ends - starts >= HEADER_BYTES
    places = starts[long_enough]
    if len(places):
        magic = data[places] == 0
        numbers = np.zeros(len(places), np.int64)
        for index in range(1, HEADER_BYTES):
            numbers = numbers << 8 | data[places + index]
        ids[long_enough] = np.where(magic, numbers, -1)
    faults: dict[int, str] = {}
    if len(places) < rows or (ids < 0).any():
        present = np.asarray(values.is_valid())
        for row in np.flatnonzero(ids < 0).tolist():
            faults[row] = NO_VALUE if not present[row] else NO_MAGIC if long_enough[row] else TOO_SHORT
    return Frames(data, starts + HEADER_BYTES, ends, ids, faults)


def binary_parts(values: Any) -> tuple[Ints, npt.NDArray[np.uint8]]:
    """Return offsets and bytes of a binary array. The bytes are read-only, so kernels are compiled only once."""
    rows = len(values)
    is_large = pa.types.is_large_binary(values.type)
    _, ends, content = values.buffers()
    width = np.dtype(np.int64 if is_large else np.int32)
    if ends is None or not rows:
        offsets = np.zeros(rows + 1, np.int64)
    else:
        offsets = np.frombuffer(ends, width, rows + 1, values.offset * width.itemsize).astype(np.int64)
    data = np.frombuffer(content, np.uint8) if content is not None else np.frombuffer(b"", np.uint8)
    data.flags.writeable = False
    return offsets, data


def buffer_of(array: Any) -> Any:
    """Wrap a numpy array in an Arrow buffer, without a copy."""
    return pa.py_buffer(array)
