"""Delta tables as streams: rows as they are added, or the change feed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import DeltaSource

CHANGE_DDL = "_change_type STRING, _commit_version BIGINT, _commit_timestamp TIMESTAMP"


def stream(spark: SparkSession, source: DeltaSource, path: str) -> DataFrame:
    """The rows of a table, or its changes, as a streaming frame."""
    reader = spark.readStream.format("delta")
    if source.changes:
        reader = reader.option("readChangeFeed", "true")
    if source.starting_version is not None:
        reader = reader.option("startingVersion", source.starting_version)
    if source.starting_timestamp is not None:
        reader = reader.option("startingTimestamp", source.starting_timestamp.isoformat())
    if source.max_files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", source.max_files_per_trigger)
    if source.skip_change_commits:
        reader = reader.option("skipChangeCommits", "true")
    return reader.load(path)


def columns(table: StructType, source: DeltaSource) -> StructType:
    """What `stream` gives, of a table with these columns."""
    from pyspark.sql.types import StructType

    if not source.changes:
        return table
    changes = StructType.fromDDL(CHANGE_DDL)
    assert isinstance(changes, StructType)
    return StructType([*table.fields, *changes.fields])


def exists(spark: SparkSession, path: str) -> bool:
    """Whether a Delta table lies there."""
    from delta.tables import DeltaTable

    return bool(DeltaTable.isDeltaTable(spark, path))
