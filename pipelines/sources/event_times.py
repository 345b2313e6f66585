"""The latest event times of a topic's partitions, from the records read last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headwater.pipelines import columns
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.sources import decoding
from headwater.pipelines.sources import topic as topic_source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from headwater.pipelines.definition import TopicSource
    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["event_time_ms", "event_time_us", "latest_event_times"]

# Per partition: enough for its latest event time, and quickly read.
RECORDS: Final = 100


def event_time_ms(rows: DataFrame, column: str) -> Column:
    """The event time of a watermark's column in milliseconds; for a window its end, as in Spark."""
    from pyspark.sql import functions as f

    return f.unix_millis(_event_time(rows, column))


def event_time_us(rows: DataFrame, column: str) -> Column:
    """The event time in microseconds, in which Spark compares it with the watermark; for a window its end."""
    from pyspark.sql import functions as f

    return f.unix_micros(_event_time(rows, column))


def _event_time(rows: DataFrame, column: str) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    found = f.col(column)
    kind = rows.select(found.alias("x")).schema["x"].dataType
    return (found["end"] if isinstance(kind, StructType) else found).cast("timestamp")


def latest_event_times(
    session: SparkSession,
    servers: Brokers,
    known: KnownColumns,
    source: TopicSource,
    ends: Mapping[tuple[str, int], int],
) -> dict[tuple[str, int], int]:
    """The latest event time (ms) among the last records before `ends` (next offsets), by partition.

    Partitions without an event time are omitted. The source must have a watermark. Raises the errors of Spark or of the
    broker.
    """
    import json

    from pyspark.sql import functions as f

    assert source.watermark is not None
    mine = {partition: end for (topic, partition), end in ends.items() if topic == source.topic}
    if not mine:
        return {}
    start = {source.topic: {str(partition): max(0, end - RECORDS) for partition, end in mine.items()}}
    end = {source.topic: {str(partition): end for partition, end in mine.items()}}
    headers = decoding.needs_headers(known, source)
    records = topic_source.batch_between(
        session,
        servers,
        source.topic,
        json.dumps(start),
        json.dumps(end),
        isolation=source.isolation,
        headers=headers,
    )
    rows = decoding.decode_input(known, records, source).where(f.col(columns.ERROR).isNull())
    at = event_time_ms(rows, source.watermark.column)
    latest = rows.groupBy(columns.PARTITION).agg(f.max(at).alias("latest")).collect()
    return {(source.topic, int(row[0])): int(row[1]) for row in latest if row[1] is not None}
