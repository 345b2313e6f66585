"""Flattens Arrow's arrays to numbers, and writes rows as Avro values."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.formats.avro import encode_kernel as kernel
from headwater.pipelines.formats.avro.columns import Node, logical
from headwater.pipelines.formats.avro.writing import program
from headwater.pipelines.formats.batches import UnwritableError
from headwater.pipelines.formats.framing import ArrowArray, buffer_of
from headwater.pipelines.schemas.avro.types import EnumType

Ints = npt.NDArray[np.int64]

_ROW_BYTES: Final = 64  # room for a row at first; it grows
OUT_BYTES_MAX: Final = (1 << 31) - 1  # of one batch: Arrow's offsets have 32 bits


class RowWriter:
    """Writes rows as values of one schema."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._nodes = list(root.all())
        self._code = np.array(program(root), np.int64)

    def values(self, rows: ArrowArray, header: bytes) -> ArrowArray:
        """Return a binary array of values, each preceded by `header`; `rows` has the schema's own `arrow_type`.

        A null row yields a null value: a tombstone. Raises UnwritableError.
        """
        if rows.null_count and not self._root.nullable:
            present = rows.is_valid()
            values = self.values(rows.filter(present), header)
            places = pa.array(np.cumsum(np.asarray(present)) - 1, pa.int64(), mask=~np.asarray(present))
            return values.take(places)
        flat = _Flat(len(self._nodes))
        flat.add(self._root, rows)
        bases, valid, first, second, pool = flat.joined()
        count = len(rows)
        offsets: Ints = np.zeros(count + 1, np.int64)
        out: npt.NDArray[np.uint8] = np.empty(count * _ROW_BYTES + len(pool) + 64, np.uint8)
        fault: Ints = np.zeros(2, np.int64)
        done = 0
        while True:
            done = kernel.encode(
                count, done, int(offsets[done]), np.frombuffer(header, np.uint8), self._code, bases, valid, first,
                second, pool, out, offsets, fault,
            )  # fmt: skip
            if fault[0]:
                node = self._nodes[int(fault[1])]
                raise UnwritableError(f"column {node.path.removeprefix('$.')}: {kernel.REASONS[int(fault[0])]}")
            if done == count:
                break
            grown = np.empty(2 * len(out), np.uint8)
            grown[: len(out)] = out
            out = grown
        if offsets[-1] > OUT_BYTES_MAX:
            raise UnwritableError("the values of one batch are larger than 2 GiB")
        buffers = [None, buffer_of(offsets.astype(np.int32)), buffer_of(out[: offsets[-1]])]
        return pa.Array.from_buffers(pa.binary(), count, buffers, 0)


class _Flat:
    """The entries of all slots, gathered array by array."""

    def __init__(self, slots: int) -> None:
        self._valid: list[Any] = [np.zeros(0, np.uint8)] * slots
        self._first: list[Any] = [np.zeros(0, np.int64)] * slots
        self._second: list[Any] = [np.zeros(0, np.int64)] * slots
        self._pool: list[Any] = []
        self._pool_size = 0

    def joined(self) -> tuple[Ints, Any, Any, Any, Any]:
        """Return the start of each slot's entries, their presence flags, both numbers, and all bytes."""
        sizes = [len(part) for part in self._valid]
        bases = np.zeros(len(sizes), np.int64)
        np.cumsum(sizes[:-1], out=bases[1:])
        pool = np.concatenate([*self._pool, np.zeros(0, np.uint8)])
        return bases, np.concatenate(self._valid), np.concatenate(self._first), np.concatenate(self._second), pool

    def add(self, node: Node, array: ArrowArray) -> None:
        """Add the entries of a node and of the nodes below it."""
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if array.offset:
            array = pa.concat_arrays([array, array[:0]])
        count = len(array)
        first: Any = np.zeros(count, np.int64)
        second: Any = np.zeros(count, np.int64)
        if isinstance(node.type, EnumType):
            symbols = pa.array(node.type.symbols, pa.string())
            places: Any = pc.index_in(array, symbols)
            first = np.asarray(places.fill_null(-1)).astype(np.int64)
        elif node.sql == "STRUCT":
            by_name = {array.type.field(index).name: index for index in range(array.type.num_fields)}
            for child in node.children:
                self.add(child, array.field(by_name[child.name]))
        elif node.sql in ("ARRAY", "MAP"):
            offsets = np.frombuffer(array.buffers()[1], np.int32)[: count + 1].astype(np.int64) if count else None
            if offsets is not None:
                first, second = offsets[:-1], np.diff(offsets)
            parts = [array.values] if node.sql == "ARRAY" else [array.keys, array.items]
            for child, part in zip(node.children, parts, strict=True):
                self.add(child, part)
        elif node.sql in ("STRING", "BINARY"):
            first, second = self._bytes(array, count)
        elif node.sql == "DECIMAL":
            halves = np.frombuffer(array.buffers()[1] or b"", np.int64)[: 2 * count]
            first, second = halves[0::2], halves[1::2]
        elif node.sql == "BOOLEAN":
            first = np.asarray(array.cast(pa.uint8()).fill_null(0)).astype(np.int64)
        elif node.sql == "FLOAT" or node.sql in ("INT", "DATE"):
            first = self._fixed(array, np.int32, count)
        else:
            first = self._fixed(array, np.int64, count)
            if node.sql.startswith("TIMESTAMP"):
                first = _in_unit(first, logical(node.type).rpartition("-")[2])
        self._valid[node.slot] = np.asarray(array.is_valid()).astype(np.uint8) if count else np.zeros(0, np.uint8)
        self._first[node.slot] = np.ascontiguousarray(first, np.int64)
        self._second[node.slot] = np.ascontiguousarray(second, np.int64)

    @staticmethod
    def _fixed(array: ArrowArray, dtype: Any, count: int) -> Any:
        buffer = array.buffers()[1]
        return np.zeros(0, np.int64) if buffer is None else np.frombuffer(buffer, dtype)[:count].astype(np.int64)

    def _bytes(self, array: ArrowArray, count: int) -> tuple[Any, Any]:
        if not count:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        is_large = array.type in (pa.large_binary(), pa.large_string())
        _, ends, data = array.buffers()
        offsets = np.frombuffer(ends, np.int64 if is_large else np.int32)[: count + 1].astype(np.int64)
        content = np.frombuffer(data, np.uint8)[: offsets[-1]] if data is not None else np.zeros(0, np.uint8)
        base = self._pool_size
        self._pool.append(content)
        self._pool_size += len(content)
        return offsets[:-1] + base, np.diff(offsets)


def _in_unit(micros: Any, unit: str) -> Any:
    """Convert microseconds to the schema's unit."""
    if unit == "millis":
        return micros // 1000
    return micros * 1000 if unit == "nanos" else micros
