"""Topics as frames, in a stream and in a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.definition import interval_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.datasource.json_fields import JsonFields
    from headwater.pipelines.definition import TopicSource

SPARK_FORMAT = (
    "headwater"  # the name of headwater.pipelines.datasource; its options and columns are those of format("kafka")
)
READ_COMMITTED = "read_committed"


def stream(
    spark: SparkSession,
    bootstrap_servers: Brokers,
    source: TopicSource,
    max_offsets_per_trigger: int | None,
    *,
    headers: bool = False,
    json_fields: JsonFields | None = None,
) -> DataFrame:
    """The records of a topic as a streaming frame: the columns of `columns.RECORD_DDL`, timestampType, HEADERS_SEEN.

    `json_fields` become columns, too, wherever the tasks that read are sure of them.
    """
    from headwater.pipelines.datasource import (
        HEADERS_SEEN_OPTION,
        JSON_FIELDS_OPTION,
        TASK_RECORDS,
        TASK_RECORDS_OPTION,
    )

    name, start = source.starting_option()
    reader = (
        spark.readStream.format(SPARK_FORMAT)
        .options(**connection_options(bootstrap_servers))
        .option("kafka.isolation.level", source.isolation)
        .option("subscribe", source.topic)
        .option(name, start)
        .option("failOnDataLoss", str(source.fail_on_data_loss).lower())
        .option(TASK_RECORDS_OPTION, TASK_RECORDS)
        .option(HEADERS_SEEN_OPTION, "true")
    )
    if json_fields is not None:
        reader = reader.option(JSON_FIELDS_OPTION, json_fields.text())
    if name == "startingTimestamp":
        # A partition without a record since then is read from its end: later records come after the moment.
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
    if max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", max_offsets_per_trigger)
    if source.min_offsets_per_trigger is not None:
        reader = reader.option("minOffsetsPerTrigger", source.min_offsets_per_trigger)
    if source.max_trigger_delay is not None:
        reader = reader.option("maxTriggerDelay", f"{interval_ms(source.max_trigger_delay)}ms")
    return reader.option("includeHeaders", str(headers).lower()).load()


def batch_between(
    spark: SparkSession,
    bootstrap_servers: Brokers,
    topic: str,
    start: str,
    end: str,
    *,
    isolation: str = READ_COMMITTED,
    headers: bool = False,
    json_fields: JsonFields | None = None,
) -> DataFrame:
    """The records of a topic from `start` to `end` (excluded), as `startingOffsets` and `endingOffsets` have them."""
    from headwater.pipelines.datasource import JSON_FIELDS_OPTION, PUSHDOWN_OPTION

    reader = (
        spark.read.format(SPARK_FORMAT)
        .option(PUSHDOWN_OPTION, "true")  # headwater.pipelines.spark.session has the setting that this needs
        .options(**connection_options(bootstrap_servers))
        .option("kafka.isolation.level", isolation)
        .option("subscribe", topic)
        .option("startingOffsets", start)
        .option("endingOffsets", end)
        .option("includeHeaders", str(headers).lower())
    )
    if json_fields is not None:
        reader = reader.option(JSON_FIELDS_OPTION, json_fields.text())
    return reader.load()


def batch(
    spark: SparkSession,
    bootstrap_servers: Brokers,
    topic: str,
    *,
    headers: bool = False,
    isolation: str = READ_COMMITTED,
    json_fields: JsonFields | None = None,
) -> DataFrame:
    """The records of a topic from its first to its last offset of now. `headers` adds the column headers."""
    return batch_between(
        spark,
        bootstrap_servers,
        topic,
        "earliest",
        "latest",
        isolation=isolation,
        headers=headers,
        json_fields=json_fields,
    )
