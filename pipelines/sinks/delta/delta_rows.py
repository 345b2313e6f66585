"""Writes rows to a Delta table, once a micro-batch.

A commit names its batch (Delta's action `txn`: appId, the checkpoint; version, the batch): a batch that the table
already has is skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines.sinks.delta.delta_append import append_once
from headwater.pipelines.sinks.stored_rows import with_lineage, with_partitions, without_underscored
from headwater.pipelines.spark.nullable import nullable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import DeltaSink


def table_rows(rows: DataFrame, sink: DeltaSink) -> DataFrame:
    """The rows as the table stores them: data columns, `columns.KEPT`, partition columns; less `underscore_columns`."""
    return without_underscored(with_layout(rows, sink), sink.underscore_columns, sink.columns_kept)


def with_layout(rows: DataFrame, sink: DeltaSink, *more: str) -> DataFrame:
    """The rows with data columns, `columns.KEPT` and `more`, partition columns."""
    return with_partitions(with_lineage(rows, *more), sink.partition_by)


def write(rows: DataFrame, sink: DeltaSink, path: str, app_id: str, batch_id: int, *, replaces: bool = False) -> None:
    """Append one micro-batch, or replace all the table's rows by it, unless the table already has it."""
    frame = table_rows(rows, sink)
    if sink.properties or sink.cluster_by:
        create(frame.sparkSession, sink, path, frame.schema)
    names = sink.partitions
    if names:
        # One task per partition value: otherwise every task writes a small file into every partition.
        frame = frame.repartition(*(f"`{name}`" for name in names))
    if not replaces and append_once(frame, path, app_id, batch_id, names, merge_schema=sink.merge_schema):
        return
    writer = (
        frame.write.format("delta")
        .mode("overwrite" if replaces else "append")
        .option("txnAppId", app_id)
        .option("txnVersion", batch_id)
        .option("mergeSchema", str(sink.merge_schema).lower())
    )
    (writer.partitionBy(*names) if names else writer).save(path)


def create(spark: SparkSession, sink: DeltaSink, path: str, schema: StructType) -> None:
    """Create the table without rows, with the properties of `sink`, if it does not exist."""
    from delta.tables import DeltaTable

    if DeltaTable.isDeltaTable(spark, path):
        return
    builder = DeltaTable.createIfNotExists(spark).location(path).addColumns(nullable(schema))
    if sink.partition_by:
        builder = builder.partitionedBy(*sink.partitions)
    if sink.cluster_by:
        builder = builder.clusterBy(*sink.cluster_by)
    for name, value in sink.properties.items():
        builder = builder.property(name, str(value).lower() if isinstance(value, bool) else str(value))
    builder.execute()
