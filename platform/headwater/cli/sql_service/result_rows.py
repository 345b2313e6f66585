"""The rows of a result as bytes: JSON arrays a line, or Arrow's IPC stream; bounded in rows and bytes.

This runs in Spark's Python workers.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from headwater.api.sql_gateway import QueryEnd, RowForm
from headwater.cli.sql.values import plain, row_values

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["ARROW_END", "RowEncoder", "encoded", "encoder_of"]

CHUNK_ROWS_MAX: Final = 1_000
CHUNK_BYTES: Final = 256 << 10  # a chunk ends behind the row that reaches it
ARROW_END: Final = b"headwater.end"  # of the last batch's metadata, which has no rows: JSON, as in NDJSON's last line


class RowEncoder(Protocol):
    """Encodes a result's rows, chunk by chunk."""

    def row(self, row: Sequence[Any]) -> int:
        """Take a row; returns its size in bytes, roughly."""

    def drop(self) -> None:
        """Forget the row that was taken last."""

    def chunk(self) -> bytes:
        """The rows taken since the last chunk; may be called without any."""

    def end(self, end: QueryEnd) -> bytes:
        """What follows the last row."""


class _Lines:
    """A JSON array a line."""

    def __init__(self, schema: StructType) -> None:
        self._values = row_values(schema)
        self._lines: list[bytes] = []

    def row(self, row: Sequence[Any]) -> int:
        line = json.dumps([plain(value) for value in self._values(row)], ensure_ascii=False).encode() + b"\n"
        self._lines.append(line)
        return len(line)

    def drop(self) -> None:
        del self._lines[-1]

    def chunk(self) -> bytes:
        lines, self._lines = self._lines, []
        return b"".join(lines)

    def end(self, end: QueryEnd) -> bytes:  # noqa: ARG002
        return b""


class _Arrow:
    """An IPC stream, of whose values Spark's own conversion decides."""

    def __init__(self, schema: StructType) -> None:
        import pyarrow as pa
        from pyspark.sql.conversion import LocalDataToArrowConversion
        from pyspark.sql.pandas.types import to_arrow_schema

        self._schema = schema
        self._columns = to_arrow_schema(schema, timezone="UTC")
        self._convert: Callable[..., Any] = LocalDataToArrowConversion.convert
        self._rows: list[Sequence[Any]] = []
        self._sink = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._sink, self._columns)

    def row(self, row: Sequence[Any]) -> int:
        self._rows.append(row)
        return sum(map(_size, row))

    def drop(self) -> None:
        del self._rows[-1]

    def chunk(self) -> bytes:
        rows, self._rows = self._rows, []
        if rows:
            self._writer.write_table(self._convert(rows, self._schema, False).cast(self._columns))
        return self._drained()

    def end(self, end: QueryEnd) -> bytes:
        value = {"rows": end.rows, "truncated": end.truncated}
        self._writer.write_batch(_empty_batch(self._columns), custom_metadata={ARROW_END: json.dumps(value).encode()})
        self._writer.close()
        return self._drained()

    def _drained(self) -> bytes:
        found = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return found


def _size(value: Any) -> int:
    """About the bytes of a value in Arrow.

    >>> from pyspark.sql.types import VariantVal
    >>> _size("é"), _size([1, 2, None]), _size({"a": b"bc"}), _size(VariantVal(b"abc", b"d"))
    (2, 32, 11, 20)
    """
    if value is None or isinstance(value, int | float):
        return 8
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    if isinstance(value, bytes | bytearray):
        return len(value)
    if isinstance(value, dict):
        return 8 + sum(_size(name) + _size(each) for name, each in value.items())
    if isinstance(value, list | tuple):
        return 8 + sum(map(_size, value))
    from pyspark.sql.types import VariantVal

    if isinstance(value, VariantVal):
        return 16 + len(value.value) + len(value.metadata)
    return 8


def _empty_batch(schema: Any) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([], type=each.type) for each in schema], schema=schema)


def encoder_of(form: RowForm, schema: StructType) -> RowEncoder:
    """The encoder of a result."""
    return _Arrow(schema) if form is RowForm.ARROW else _Lines(schema)


def encoded(
    rows: Iterator[Sequence[Any]], encoder: RowEncoder, rows_max: int, bytes_max: int
) -> Iterator[bytes | QueryEnd]:
    """Encode rows to chunks, the end last. A result ends before the row after `rows_max`, and before `bytes_max`.

    The end's seconds are 0.
    """
    count = total = chunk_rows = chunk_bytes = 0
    truncated = None
    for row in rows:
        if count >= rows_max:
            truncated = "rows"
            break
        size = encoder.row(row)
        if total + size > bytes_max:
            truncated = "bytes"
            encoder.drop()
            break
        count, total = count + 1, total + size
        chunk_rows, chunk_bytes = chunk_rows + 1, chunk_bytes + size
        if chunk_rows >= CHUNK_ROWS_MAX or chunk_bytes >= CHUNK_BYTES:
            yield encoder.chunk()
            chunk_rows, chunk_bytes = 0, 0
    end = QueryEnd(count, truncated, 0.0)
    last = encoder.chunk() + encoder.end(end)
    if last:
        yield last
    yield end
