"""Topics as frames, in a stream and in a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARK_FORMAT = "headwater"  # the name of pipelines.datasource; its options and columns are those of format("kafka")


def stream(
    spark: SparkSession, bootstrap_servers: str, topic: str, starting_offsets: str, max_offsets_per_trigger: int | None
) -> DataFrame:
    """The records of a topic as a streaming frame with the columns of `columns.RECORD_DDL` and timestampType."""
    reader = (
        spark.readStream.format(SPARK_FORMAT)
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", starting_offsets)
    )
    if max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", max_offsets_per_trigger)
    return reader.load()


def batch_between(spark: SparkSession, bootstrap_servers: str, topic: str, start: str, end: str) -> DataFrame:
    """The records of a topic between two sets of offsets in the JSON of `startingOffsets`, the end excluded."""
    return (
        spark.read.format(SPARK_FORMAT)
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", start)
        .option("endingOffsets", end)
        .load()
    )


def batch(spark: SparkSession, bootstrap_servers: str, topic: str, *, headers: bool = False) -> DataFrame:
    """The records of a topic from its first to its last offset of now. `headers` adds the column headers."""
    from pipelines.datasource import PUSHDOWN_OPTION

    reader = (
        spark.read.format(SPARK_FORMAT)
        .option(PUSHDOWN_OPTION, "true")  # pipelines.session has the setting that this needs
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
    )
    return reader.option("includeHeaders", "true").load() if headers else reader.load()
