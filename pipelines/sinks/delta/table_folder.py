"""What a merged Delta table remembers of its changes: Delta tables in its folder, removed and moved with it.

The merged table and its readers are unaffected: Delta neither lists nor vacuums folders that begin with `_`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headwater.pipelines.spark.hadoop_files import spark_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["WRITTEN_AT", "exists"]

WRITTEN_AT: Final = "_written_at"  # when a row was remembered; allows users to remove old ones


def exists(spark: SparkSession, path: str) -> bool:
    """Whether the folder is a Delta table itself: Delta's own check would find the table that contains the folder.

    After a crash during its creation, a table may have a log without a commit: it is not yet a table.
    """
    log = f"{path}/_delta_log"
    files = spark_files(spark, log)
    if files.entry(f"{log}/_last_checkpoint") is not None:  # avoids that a long log is listed
        return True
    return any(entry.name.endswith(".json") or ".checkpoint" in entry.name for entry in files.list(log))
