"""Writes rows to files in a folder, once a micro-batch.

Spark writes a batch into a folder that readers ignore (`_headwater`); then a plan lists the files' final names; then
the files are moved. A repeated batch finds the plan, moves the remaining files, and writes no data again; a batch whose
number is committed is skipped. Files below `<path>/_headwater/<writer>/`: `staged-N/`, `plan-N`, `committed-N` (an
empty file; the highest number applies).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import TYPE_CHECKING, Final

from headwater.pipelines.file_systems.file_system import walk
from headwater.pipelines.sinks.stored_rows import with_partitions, without_origin, without_underscored
from headwater.pipelines.sources.files import reader_options
from headwater.pipelines.spark.hadoop_files import spark_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.pipelines.definition import FilesSink, Loaded, Stage
    from headwater.pipelines.sinks.kind import BatchWrite, Encodings

HIDDEN: Final = "_headwater"
_COMMITTED: Final = "committed-"
_WRITER_LENGTH: Final = 12  # of the hash that identifies a writer in file names


def file_rows(rows: DataFrame, sink: FilesSink) -> DataFrame:
    """The rows as the files store them: data columns, and partition columns as folders."""
    found = with_partitions(without_origin(rows), sink.partition_by)
    return without_underscored(found, sink.underscore_columns, sink.columns_kept)


def write(rows: DataFrame, sink: FilesSink, path: str, app_id: str, batch_id: int) -> None:
    """Add the files of one micro-batch unless they already exist."""
    writer = hashlib.sha256(app_id.encode()).hexdigest()[:_WRITER_LENGTH]
    own = f"{path}/{HIDDEN}/{writer}"
    files = spark_files(rows.sparkSession, path)
    found = [entry.name.removeprefix(_COMMITTED) for entry in files.list(own) if entry.name.startswith(_COMMITTED)]
    committed = [int(number) for number in found if number.isdecimal()]
    if committed and max(committed) >= batch_id:
        return
    staged, plan = f"{own}/staged-{batch_id}", f"{own}/plan-{batch_id}"
    planned = files.read(plan)
    if planned is None:
        _stage(rows, sink, staged)
        moves = {name: target_name(name, writer, batch_id) for name, _ in walk(files, staged) if is_data(name)}
        files.replace(plan, json.dumps(moves).encode())
    else:
        moves = json.loads(planned)
    for name, target in moves.items():
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # moved by an earlier attempt
            files.rename(f"{staged}/{name}", f"{path}/{target}")
    files.replace(f"{own}/{_COMMITTED}{batch_id}", b"")
    for name in (staged, plan, *(f"{own}/{_COMMITTED}{number}" for number in committed)):
        files.delete(name)


def is_data(name: str) -> bool:
    """Whether a file written by Spark holds rows.

    >>> [is_data(name) for name in ("_SUCCESS", "day=1/part-0.json", "day=1/.part-0.json.crc")]
    [False, True, False]
    """
    return not os.path.basename(name).startswith(("_", "."))


def target_name(name: str, writer: str, batch_id: int) -> str:
    """Final path of a staged file: in its partition's folder, under a name with its batch's number.

    >>> target_name("day=1/part-00003-9c0e.c000.snappy.parquet", "0a1b2c", 7)
    'day=1/batch-00000007-0a1b2c-00003-9c0e.c000.snappy.parquet'
    """
    folder, file = os.path.split(name)
    return os.path.join(folder, f"batch-{batch_id:08}-{writer}-{file.removeprefix('part-')}")


def _stage(rows: DataFrame, sink: FilesSink, staged: str) -> None:
    frame = file_rows(rows, sink)
    names = sink.partitions
    if names:
        # One task per partition value: otherwise every task writes a small file into every partition.
        frame = frame.repartition(*(f"`{name}`" for name in names))
    options = reader_options(sink.format, sink.options)
    frame.write.format(sink.format).options(**options).mode("overwrite").save(staged, partitionBy=list(names) or None)


class FilesKind:
    """See `SinkKind`."""

    def check(self, _loaded: Loaded, sink: FilesSink, rows: DataFrame, _encodings: Encodings) -> None:
        """Check that at least one column is not a partition column."""
        names = sink.partitions
        held = file_rows(rows, sink)
        held.select(*(f"`{name}`" for name in names)).schema  # noqa: B018 - analysed here
        if len(names) == len(held.columns):
            raise ValueError("the files would have no columns: every one is a partition's")

    def shown(self, sink: FilesSink, rows: DataFrame, _encodings: Encodings) -> DataFrame:
        """The files' rows, with the partition columns."""
        return file_rows(rows, sink)

    def stored(self, sink: FilesSink, rows: DataFrame) -> None:
        """None: readers infer the columns from the files."""

    def writer(self, loaded: Loaded, _stage: Stage, sink: FilesSink) -> BatchWrite:
        """A function that writes each micro-batch to files whose names contain its number."""
        path = loaded.path(sink.files)

        def write_batch(rows: DataFrame, app_id: str, batch_id: int) -> None:
            write(rows, sink, path, app_id, batch_id)

        return write_batch
