"""Writes the records of offset ranges as Parquet files of a table, in Spark's tasks: the rows never enter the JVM.

A file's name has its round's, and is its attempt's own. Only the files that a task returns are committed: those of
failed and of speculative attempts are in no commit. A task that fails deletes its own, if it can; the rest is deleted
when its round fails, or by VACUUM.
"""

from __future__ import annotations

import contextlib
import io
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

import orjson

from headwater.pipelines.archive.arrow_rows import ArrowRows
from headwater.pipelines.archive.earlier_rounds import file_prefix
from headwater.pipelines.archive.file_statistics import INDEXED_COLUMNS, FileStatistics
from headwater.pipelines.file_systems.file_system import FileSystem, join

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.pipelines.datasource.options import ReadOptions
    from headwater.pipelines.datasource.reading import RangePartition

__all__ = ["UNDECODED", "RangeWriter", "WrittenRange", "write_ranges"]

#: Below a table: records that Spark decodes, for the time of a round.
UNDECODED: Final = "_headwater/undecoded"
CODEC: Final = "snappy"  # Spark's default, which every reader of Parquet has
GROUP_ROWS: Final = 500_000
GROUP_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """What a task has written.

    Attributes:
        add: The `add` action of its file as JSON; '' without rows.
        rows: The rows in that file.
        undecoded: The file of records for Spark to decode; '' without any.
        undecoded_rows: Their number.
        has_headers: Whether any of them has headers.
    """

    add: str = ""
    rows: int = 0
    undecoded: str = ""
    undecoded_rows: int = 0
    has_headers: bool = False


@dataclass(frozen=True, slots=True)
class RangeWriter:
    """A task's work; picklable.

    Attributes:
        round_name: Names the folder of undecoded records; the names of files in the table begin with it.
        indexed_columns: How many columns have statistics, as in Delta's `delta.dataSkippingNumIndexedCols`.
    """

    table: str
    files: FileSystem
    rows: ArrowRows
    options: ReadOptions
    round_name: str
    indexed_columns: int = INDEXED_COLUMNS

    def write(self, part: RangePartition) -> WrittenRange:
        """Read the records of some ranges, and write them."""
        from headwater.pipelines.datasource.reading import read_range

        name = uuid.uuid4().hex
        in_table = f"{file_prefix(self.round_name)}{name}-c000.{CODEC}.parquet"
        decoded = _ParquetFile(self.files, self.table, in_table, self.indexed_columns)
        undecoded = _ParquetFile(self.files, join(self.table, UNDECODED, self.round_name), f"{name}.parquet", 0)
        has_headers = False
        try:
            with contextlib.ExitStack() as open_files, decoded, undecoded:
                for records in read_range(part, self.options):
                    rows, rest = self.rows.of(records)
                    if rows.num_rows:
                        decoded.add(rows, open_files)
                    if rest.num_rows:
                        rest = rest.select(_records_of(rest))
                        has_headers = has_headers or rest.column("headers").null_count < rest.num_rows
                        undecoded.add(rest, open_files)
                footers = [each.end() for each in (decoded, undecoded)]
        except BaseException:
            # On a full disk they would keep it full. What cannot be deleted must not hide the error.
            with contextlib.suppress(Exception):
                for each in (decoded, undecoded):
                    each.delete()
            raise
        # The files are whole and durable from here on.
        return WrittenRange(
            add=decoded.action(footers[0]),
            rows=decoded.rows,
            undecoded=undecoded.path if undecoded.rows else "",
            undecoded_rows=undecoded.rows,
            has_headers=has_headers,
        )


def _records_of(batch: pa.RecordBatch) -> list[str]:
    """The columns of records, without those that the task has parsed."""
    from headwater.logtier.records.columns import column_schema

    known = set(column_schema(include_headers=True).names)
    return [name for name in batch.schema.names if name in known]


class _ParquetFile:
    """One file, which is made when it gets its first rows."""

    def __init__(self, files: FileSystem, folder: str, name: str, indexed_columns: int) -> None:
        self.path = join(folder, name)
        self.rows = 0
        self._name = name
        self._files = files
        self._indexed_columns = indexed_columns
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._sink: _Counted | None = None
        self._writer: Any = None
        self._statistics: FileStatistics | None = None

    def add(self, batch: pa.RecordBatch, open_files: contextlib.ExitStack) -> None:
        """Add rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            self._sink = _Counted(open_files.enter_context(self._files.writer(self.path)))
            self._writer = pq.ParquetWriter(pa.PythonFile(self._sink, mode="w"), batch.schema, compression=CODEC)
            self._statistics = FileStatistics(batch.schema, self._indexed_columns)
        assert self._statistics is not None
        self._statistics.add(batch)
        self.rows += batch.num_rows
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= GROUP_ROWS or self._held_bytes >= GROUP_BYTES:
            self._write_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None and self._writer is not None:
            # Else pyarrow writes a footer when the writer is collected: the file would look whole, if it still is open.
            self._writer.is_open = False

    def _write_group(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_batches(self._held), row_group_size=self._held_rows)
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def delete(self) -> None:
        """Delete the file, if it was begun. Raises FileSystemError."""
        if self._sink is not None:
            self._files.delete(self.path)

    def end(self) -> Any:
        """Write the footer; return it, None without a file."""
        if self._writer is None:
            return None
        if self._held_rows:
            self._write_group()
        self._writer.close()
        return self._writer.writer.metadata

    def action(self, footer: Any) -> str:
        """Delta's `add` action of the file (Delta protocol, "Add File and Remove File"); '' without a file."""
        if footer is None:
            return ""
        assert self._sink is not None
        assert self._statistics is not None
        add = {
            "path": self._name,
            "partitionValues": {},
            "size": self._sink.size,
            "modificationTime": int(time.time() * 1000),
            "dataChange": True,
            "stats": self._statistics.text(footer),
        }
        return orjson.dumps({"add": add}).decode()


class _Counted(io.RawIOBase):
    """A file that counts what is written to it, and is closed by its own context."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.size = 0

    def write(self, data: Any, /) -> int:
        """Write bytes."""
        view = memoryview(data)
        self._file.write(view)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """The position."""
        return self.size

    def writable(self) -> bool:
        """It is."""
        return True


def write_ranges(writer: RangeWriter) -> Any:
    """The function of a job's tasks."""

    def write(parts: Iterator[RangePartition]) -> Iterator[WrittenRange]:
        for part in parts:
            yield writer.write(part)

    return write
