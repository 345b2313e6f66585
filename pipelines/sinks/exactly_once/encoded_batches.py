"""Transfer of the exactly-once sink's record batches from the encoding pass to the sending pass.

Spark shuffles a row for each batch. If tasks may run on several machines, the row contains the batch. If all tasks run
on the driver's machine (a `local` master), a file contains the batch, and the row its position: the bytes do not pass
through the JVM and its shuffle.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["ENCODED_DDL", "EncodedReader", "EncodedWriter", "folder_for_encoded"]

ENCODED_DDL: Final = (
    "target INT, task INT, number INT, records INT, data BINARY, file STRING, position BIGINT, bytes INT"
)
# Encoded bytes, and rows, that are passed to Spark at once.
HANDED_OVER_BYTES: Final = 1 << 20
HANDED_OVER_ROWS: Final = 256


class _Row(NamedTuple):
    """A row of ENCODED_DDL without its task and file."""

    target: int
    number: int
    records: int
    data: bytearray | None
    position: int
    bytes: int


@contextmanager
def folder_for_encoded(spark: SparkSession) -> Iterator[str | None]:
    """A temporary folder that all tasks of the session can access; None if tasks run on several machines.

    The folder is inside Spark's folder for temporary files, and remains, like these, if the driver is killed.
    """
    context = spark.sparkContext
    if not is_local(context.master or ""):
        yield None
        return
    folder = tempfile.mkdtemp(prefix="encoded-", dir=context._temp_dir)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_local(master: str) -> bool:
    """Whether the tasks of a `spark.master` run in the driver's JVM.

    >>> [is_local(master) for master in ("local", "local[*]", "local[2,4]", "local-cluster[2,1,1024]", "yarn")]
    [True, True, True, False, False]
    """
    return master == "local" or master.startswith("local[")


class EncodedWriter:
    """Collects the batches of one encoding task, in order, as rows of ENCODED_DDL."""

    def __init__(self, task: int, first_target: int, folder: str | None) -> None:
        """With a folder, the writer stores the batches in a file of its own there."""
        self._task = task
        self._first_target = first_target
        self._number = 0
        self._rows: list[_Row] = []
        self._bytes = 0
        self._file: BinaryIO | None = None
        self._path: str | None = None
        self._position = 0
        if folder is not None:
            # Spark may run a task twice: each attempt uses its own file.
            descriptor, self._path = tempfile.mkstemp(prefix=f"{task}-", dir=folder)
            self._file = os.fdopen(descriptor, "wb")

    def __enter__(self) -> EncodedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, partition: int, records: int, data: bytearray) -> None:
        """Add a batch of `records` records for target number `partition`."""
        carried: bytearray | None = data
        if self._file is not None:
            self._file.write(data)
            carried = None
        else:
            self._bytes += len(data)
        row = _Row(self._first_target + partition, self._number, records, carried, self._position, len(data))
        self._rows.append(row)
        self._number += 1
        self._position += len(data)

    @property
    def is_full(self) -> bool:
        """Whether there are enough rows to pass to Spark."""
        return self._bytes >= HANDED_OVER_BYTES or len(self._rows) >= HANDED_OVER_ROWS

    def take(self) -> Iterator[pa.RecordBatch]:
        """The rows since the last call, if any; their bytes are in the file by then."""
        import pyarrow as pa

        if not self._rows:
            return
        if self._file is not None:
            self._file.flush()
        targets, numbers, records, data, positions, sizes = zip(*self._rows, strict=True)
        self._rows, self._bytes = [], 0
        count = len(targets)
        columns: list[pa.Array[Any]] = [
            pa.array(targets, pa.int32()),
            pa.array([self._task] * count, pa.int32()),
            pa.array(numbers, pa.int32()),
            pa.array(records, pa.int32()),
            pa.array(data, pa.binary()),
            pa.array([self._path] * count, pa.string()),
            pa.array(positions, pa.int64()),
            pa.array(sizes, pa.int32()),
        ]
        names = ["target", "task", "number", "records", "data", "file", "position", "bytes"]
        yield pa.record_batch(columns, names=names)


class Encoded(NamedTuple):
    """A batch as received by the sending pass."""

    target: int
    records: int
    data: bytearray


class EncodedReader:
    """Reads rows of ENCODED_DDL; keeps the files that they name open until the reader is closed."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._files: dict[str, int] = {}

    def __enter__(self) -> EncodedReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def batches(self, rows: pa.RecordBatch) -> Iterator[Encoded]:
        """The batches of the rows, in order. Raises OSError for a missing or truncated file."""
        for row, (target, records, path, position, size) in enumerate(_places(rows)):
            if path is None:
                yield Encoded(target, records, bytearray(rows["data"][row].as_buffer()))
            else:
                yield Encoded(target, records, self._read(path, position, size))

    def _read(self, path: str, position: int, size: int) -> bytearray:
        descriptor = self._files.get(path)
        if descriptor is None:
            descriptor = self._files[path] = os.open(path, os.O_RDONLY)
            self._open.callback(os.close, descriptor)
        data = bytearray(size)
        # Linux reads up to 2 GiB at once, and a batch is far smaller: a short read means the end of the file.
        if os.preadv(descriptor, [data], position) < size:
            raise OSError(f"{path} ends before byte {position + size}")
        return data


def _places(rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = (rows[name].to_pylist() for name in ("target", "records", "file", "position", "bytes"))
    return zip(*columns, strict=True)
