"""What a merged Delta table remembers of its changes: Delta tables in its folder, removed and moved with it.

The merged table and its readers are unaffected: Delta neither lists nor vacuums folders that begin with `_`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headwater.pipelines.spark.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["WRITTEN_AT", "exists"]

WRITTEN_AT: Final = "_written_at"  # when a row was remembered; allows users to remove old ones


def exists(spark: SparkSession, path: str) -> bool:
    """Whether the folder is a Delta table itself: Delta's own check would find the table that contains the folder."""
    log = f"{path}/_delta_log"
    return HadoopFiles(spark, log).exists(log)
