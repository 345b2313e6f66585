"""Rows that Spark makes, for trying out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.definition import RateSource

DDL = "timestamp TIMESTAMP, value BIGINT"


def stream(spark: SparkSession, source: RateSource) -> DataFrame:
    """So many rows a second, as a streaming frame."""
    return spark.readStream.format("rate").option("rowsPerSecond", source.rate).load()
