"""Converts the slots of a reading program to Arrow's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.formats.avro import decode_kernel as kernel
from headwater.pipelines.formats.avro.columns import Node
from headwater.pipelines.formats.avro.reading import Reading
from headwater.pipelines.formats.framing import ArrowArray, buffer_of
from headwater.pipelines.schemas.avro.types import EnumType

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

SLOT_BYTES_MAX: Final = 1 << 28  # of the entries of all slots for one batch; a batch that needs more is cut in two


_SIMPLE: Final[dict[str, Any]] = {
    "BOOLEAN": pa.bool_(), "INT": pa.int32(), "BIGINT": pa.int64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64(),
    "BINARY": pa.binary(), "STRING": pa.string(), "DATE": pa.date32(), "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}  # fmt: skip


def arrow_type(node: Node) -> pa.DataType:
    """Return a node's Arrow type, as Spark expects it."""
    match node.sql:
        case "STRUCT":
            return pa.struct([pa.field(child.name, arrow_type(child)) for child in node.children])
        case "ARRAY":
            return pa.list_(pa.field("element", arrow_type(node.children[0])))
        case "MAP":
            return pa.map_(pa.string(), arrow_type(node.children[1]))
        case "DECIMAL":
            return pa.decimal128(node.precision, node.scale)
        case simple:
            found: pa.DataType = _SIMPLE[simple]
            return found


class TooManyEntriesError(ValueError):
    """One value has more entries than the slots can hold."""


class Decoded:
    """Decoded values: arrays by node, and the unreadable rows with their reasons."""

    def __init__(
        self, reading: Reading, data: Bytes, starts: Ints, ends: Ints, entries: Ints, *, are_chained: bool = False
    ) -> None:
        """Decode the values in `data`; `entries` contains the start of each value's program, -1 for none.

        `are_chained` means that only the first start is known: each further value starts at the end of its predecessor.
        """
        self._reading = reading
        self._data = data
        self._constants = np.frombuffer(bytes(reading.constants), np.uint8)
        rows = len(starts)
        slots = sum(1 for _ in reading.root.all())
        capacity = max(rows, 1)
        code, table = np.array(reading.code or [0], np.int64), np.array(reading.table or [0], np.int64)
        self._valid: npt.NDArray[np.uint8] = np.empty((slots, capacity), np.uint8)
        self._first: Ints = np.empty((slots, capacity), np.int64)
        self._second: Ints = np.empty((slots, capacity), np.int64)
        self._counts: Ints = np.zeros(slots, np.int64)
        errors, details = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        nulls = np.array(reading.root.nulls(), np.int64)
        done = 0
        while done < rows:
            done = kernel.decode(
                data, starts, ends, entries, done, code, table, self._valid, self._first, self._second, self._counts,
                capacity, errors, details, nulls, are_chained,
            )  # fmt: skip
            if done < rows:
                capacity *= 2
                if capacity * slots > SLOT_BYTES_MAX // 17 and capacity > 2 * rows:
                    raise TooManyEntriesError("a value holds more items than there is room for")
                self._grow(capacity)
        self.errors: Mapping[int, str] = {
            int(row): self._reason(int(errors[row]), int(details[row])) for row in np.flatnonzero(errors)
        }
        self.failed = frozenset(
            int(row) for row in np.flatnonzero((errors == kernel.FAILED) | (errors == kernel.UNKNOWN_SYMBOL))
        )

    def _grow(self, capacity: int) -> None:
        for name in ("_valid", "_first", "_second"):
            old = getattr(self, name)
            new = np.empty((len(old), capacity), old.dtype)
            new[:, : old.shape[1]] = old
            setattr(self, name, new)

    def _reason(self, code: int, detail: int) -> str:
        if code in (kernel.FAILED, kernel.UNKNOWN_SYMBOL):
            return self._reading.messages[detail]
        return kernel.REASONS[code]

    def array(self, node: Node) -> ArrowArray:
        """Return a node's entries as an array of its `arrow_type`."""
        kind: Any = arrow_type(node)
        count = int(self._counts[node.slot])
        valid = self._valid[node.slot, :count]
        first, second = self._first[node.slot, :count], self._second[node.slot, :count]
        nulls = count - int(np.count_nonzero(valid))
        mask = buffer_of(np.packbits(valid, bitorder="little")) if nulls else None

        def made(*buffers: Any, children: list[ArrowArray] | None = None) -> ArrowArray:
            return pa.Array.from_buffers(kind, count, [mask, *buffers], nulls, children=children)

        if isinstance(node.type, EnumType):
            symbols = pa.array(self._reading.symbols(node), pa.string())
            places: Any = pa.array(first, pa.int64(), mask=valid == 0)
            return symbols.take(places).cast(kind)
        match node.sql:
            case "STRUCT":
                return made(children=[self.array(child) for child in node.children])
            case "ARRAY" | "MAP":
                offsets = self._offsets(first, valid)
                if node.sql == "ARRAY":
                    return made(buffer_of(offsets), children=[self.array(node.children[0])])
                entries = pa.struct([kind.key_field, kind.item_field])
                pairs = [self.array(child) for child in node.children]
                struct = pa.Array.from_buffers(entries, len(pairs[0]), [None], 0, children=pairs)
                return made(buffer_of(offsets), children=[struct])
            case "STRING" | "BINARY":
                offsets = self._offsets(second, valid)
                out = np.empty(int(offsets[-1]), np.uint8)
                kernel.gather(self._data, self._constants, first, second, valid, offsets, out)
                return made(buffer_of(offsets), buffer_of(out))
            case "DECIMAL":
                halves = np.empty((count, 2), np.int64)
                halves[:, 0], halves[:, 1] = first, second
                return made(buffer_of(halves))
            case "BOOLEAN":
                return made(buffer_of(np.packbits(first.astype(np.uint8), bitorder="little")))
            case "DOUBLE":
                return made(buffer_of(np.ascontiguousarray(first)))
            case "FLOAT":
                return made(buffer_of(first.view(np.float64).astype(np.float32)))
            case "INT" | "DATE":
                return made(buffer_of(first.astype(np.int32)))
            case _:
                return made(buffer_of(np.ascontiguousarray(first)))

    def _offsets(self, sizes: Ints, valid: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(np.where(valid != 0, sizes, 0), out=offsets[1:])
        if offsets[-1] > np.iinfo(np.int32).max:
            raise TooManyEntriesError("the values of a batch are too large for one column")
        return offsets.astype(np.int32)
