"""Writes a load's rows as files below the target's hidden folder, by Spark's tasks.

Parquet, ORC and JSON by Spark's own writers. Avro by fastavro: Spark's Avro writer is a package of its own
that is not published for this Spark.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headwater.pipelines.file_systems.file_system import FileSystem, join, walk
from headwater.pipelines.loads.targets.avro_files import write_avro
from headwater.pipelines.loads.targets.manifest import LoadedFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["described_files", "final_name", "write_rows"]

_CHUNK_BYTES: Final = 1 << 20
_HASH_TASKS_MAX: Final = 64


def write_rows(rows: DataFrame, form: str, files: FileSystem, folder: str, partition_by: Sequence[str]) -> list[str]:
    """Write the rows into a folder that does not exist yet, and return the files' paths relative to it."""
    if form == "avro":
        return write_avro(rows, files, folder, partition_by)
    rows.write.format(form).mode("error").save(folder, partitionBy=list(partition_by) or None)
    return [name for name, _ in walk(files, folder) if not os.path.basename(name).startswith(("_", "."))]


def described_files(spark: SparkSession, files: FileSystem, folder: str, names: Sequence[str]) -> list[LoadedFile]:
    """The files with their sizes and checksums, which Spark's tasks compute."""
    if not names:
        return []

    def described(name: str) -> LoadedFile:
        return _described(files, folder, name)

    tasks = min(len(names), _HASH_TASKS_MAX)
    return spark.sparkContext.parallelize(names, tasks).map(described).collect()


def _described(files: FileSystem, folder: str, name: str) -> LoadedFile:
    digest, size = hashlib.sha256(), 0
    with files.open(join(folder, name)) as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return LoadedFile(name, size, digest.hexdigest())


def final_name(name: str, load: str, attempt: str) -> str:
    """Final path of a staged file: in its partition's folder, named by its load and the attempt at it.

    >>> final_name("dt=2013-01-01/part-00003-9c0e.c000.snappy.parquet", "evening", "0a1b2c3d")
    'dt=2013-01-01/load-evening-0a1b2c3d-00003-9c0e.c000.snappy.parquet'
    """
    folder, file = os.path.split(name)
    return os.path.join(folder, f"load-{load}-{attempt}-{file.removeprefix('part-')}")
