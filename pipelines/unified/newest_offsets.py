"""How far an archive's table is, for statements: without a JVM on local disks, elsewhere by Spark, which reaches it.

delta-rs has its own schemes and settings of file systems; a session that can read the table has Hadoop's.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.archive.marks import ArchiveState
from headwater.pipelines.file_systems.local import local_path
from headwater.pipelines.seam.marks import APPEND, ID_PROPERTY, MODE_PROPERTY, PREFIX, TOPIC_PROPERTY
from headwater.pipelines.seam.table_offsets import SeamError, TableOffsets, table_offsets
from headwater.pipelines.spark import jvm_delta
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["newest_offsets", "offsets_by_spark"]


def newest_offsets(spark: SparkSession, path: str) -> TableOffsets | None:
    """The newest offsets of a table, which is a path or URL; None without a table. Raises SeamError."""
    local = local_path(path)
    return table_offsets(local) if os.path.isabs(local) else offsets_by_spark(spark, path)


def offsets_by_spark(spark: SparkSession, path: str) -> TableOffsets | None:
    """The same by Delta's own snapshot, in the session's file systems."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        transaction = jvm_delta.start_delta_transaction(spark, path)
        version = jvm_delta.delta_version(transaction)
        if version < 0:
            return None
        properties = json.loads(jvm_delta.delta_definition(transaction)[1])["metaData"].get("configuration", {})
        topic_id = properties.get(ID_PROPERTY)
        if topic_id is None:
            raise SeamError(f"the table {path} was not made by an archive")
        return TableOffsets(
            version,
            properties.get(TOPIC_PROPERTY, ""),
            topic_id,
            jvm_delta.delta_committed_ms(transaction),
            dict(sorted(ArchiveState.of(jvm_delta.delta_marks(transaction, PREFIX), topic_id).ends.items())),
            properties.get(MODE_PROPERTY, APPEND),
        )
    except (PySparkException, Py4JJavaError) as error:
        raise SeamError(f"the table {path} cannot be read: {first_line(error)}") from None
    except ArchiveError as error:
        raise SeamError(f"the table {path} cannot be read: {error}") from None
