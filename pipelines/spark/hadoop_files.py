"""The file system of a path as Spark sees it: local disks from Python, all others by Hadoop in Spark's JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines.file_systems.jvm_files import JvmFiles
from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.file_systems.opening import scheme_of
from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.file_systems.file_system import FileSystem

__all__ = ["spark_files"]


def spark_files(spark: SparkSession, path: str) -> FileSystem:
    """Return the file system, with the session's settings; it cannot be pickled unless it is local.

    To Spark, a path without a scheme is one of Hadoop's default file system (`fs.defaultFS`).
    """
    scheme = scheme_of(path)
    if scheme == "file":
        return LocalFiles()
    configured = jvm.hadoop_configuration(spark)
    scheme = scheme or scheme_of(str(configured[1].get("fs.defaultFS"))) or "file"
    return LocalFiles() if scheme == "file" else JvmFiles(scheme, lambda: configured)
