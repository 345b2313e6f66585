"""The latest value of each key of a topic, as a table (Kafka Streams' KTable)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def latest_records(records: DataFrame) -> DataFrame:
    """Of a topic's records (`columns.RECORD_DDL`) the one with the highest offset for each key; no deleted keys.

    A tombstone, which is a record without a value, deletes its key. Keys are told apart within a partition, as
    compaction does. Records without a key belong to none.
    """
    from pyspark.sql import functions as f

    names = [name for name in records.columns if name not in ("key", "partition")]
    newest = f.max_by(f.struct(*names), "offset").alias("newest")
    grouped = records.where(f.col("key").isNotNull()).groupBy("key", "partition").agg(newest)
    return grouped.where(f.col("newest.value").isNotNull()).select(
        *(f.col(name) if name in ("key", "partition") else f.col(f"newest.{name}") for name in records.columns)
    )
