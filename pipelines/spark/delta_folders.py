"""Whether a folder is a Delta table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines.spark.hadoop_files import spark_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_delta_table"]


def is_delta_table(spark: SparkSession, path: str) -> bool:
    """Whether the folder is a Delta table itself: Delta's own check would find the table that contains the folder.

    After a crash during its creation, a table may have a log without a commit: it is not yet a table. Raises
    FileSystemError.
    """
    log = f"{path}/_delta_log"
    files = spark_files(spark, log)
    if files.entry(f"{log}/_last_checkpoint") is not None:  # avoids that a long log is listed
        return True
    return any(entry.name.endswith(".json") or ".checkpoint" in entry.name for entry in files.list(log))
