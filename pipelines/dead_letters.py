"""Records that could not be used, kept in `<topic>.dead_letters`.

A dead letter is the record as it came, same key and same value, so that it can be produced again once the fault is
mended; its headers say what happened. A row that no longer knows its record (an aggregate, or SQL that left the origin
columns out) is written as JSON instead, without those headers that nobody knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines import columns
from pipelines.formats import format_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PREFIX = "headwater."
ERROR = PREFIX + "error"
PIPELINE = PREFIX + "pipeline"
STAGE = PREFIX + "stage"
EXPECTATION = PREFIX + "expectation"
TOPIC = PREFIX + "topic"
PARTITION = PREFIX + "partition"
OFFSET = PREFIX + "offset"
FILE = PREFIX + "file"


def _headers(pairs: list[tuple[str, Column]]) -> Column:
    """Headers without those whose value is null."""
    from pyspark.sql import functions as f

    made = f.array(*(f.struct(f.lit(k).alias("key"), v.cast("string").cast("binary").alias("value")) for k, v in pairs))
    return f.filter(made, lambda header: header["value"].isNotNull())


def undecodable(rejected: DataFrame, pipeline: str, stage: str) -> DataFrame:
    """Dead letters (key, value, headers) of what a format refused.

    Records have the columns of ORIGIN and ERROR, lines of files VALUE, FILE and ERROR.
    """
    from pyspark.sql import functions as f

    pairs = [(ERROR, f.col(columns.ERROR)), (PIPELINE, f.lit(pipeline)), (STAGE, f.lit(stage))]
    is_record = columns.TOPIC in rejected.columns
    pairs += _origin() if is_record else [(FILE, f.col(columns.FILE))]
    key = f.col(columns.KEY) if is_record else f.lit(None).cast("binary")
    return rejected.select(key.alias("key"), f.col(columns.VALUE).alias("value"), _headers(pairs).alias("headers"))


def unmet(rows: DataFrame, pipeline: str, stage: str, conditions: dict[str, str]) -> DataFrame:
    """Dead letters of rows whose FAILED names an expectation; `conditions` are the expectations' texts by name."""
    from pyspark.sql import functions as f

    said = f.lit(None).cast("string")
    for name, condition in conditions.items():
        text = f.lit(f"expectation {name} is not met: {condition}")
        said = f.when(f.col(columns.FAILED) == name, text).otherwise(said)
    known = all(name in rows.columns for name in (columns.PARTITION, columns.OFFSET, columns.TOPIC))
    pairs = [
        (ERROR, said),
        (PIPELINE, f.lit(pipeline)),
        (STAGE, f.lit(stage)),
        (EXPECTATION, f.col(columns.FAILED)),
        *(_origin() if known else []),
    ]
    whole = columns.KEY in rows.columns and columns.VALUE in rows.columns
    key = f.col(columns.KEY) if whole else f.lit(None).cast("binary")
    value = f.col(columns.VALUE) if whole else format_of("json").encode(rows)
    return rows.select(key.alias("key"), value.alias("value"), _headers(pairs).alias("headers"))


def _origin() -> list[tuple[str, Column]]:
    from pyspark.sql import functions as f

    return [(TOPIC, f.col(columns.TOPIC)), (PARTITION, f.col(columns.PARTITION)), (OFFSET, f.col(columns.OFFSET))]


def readable(records: DataFrame) -> DataFrame:
    """Dead letters for people: the headers as columns, key and value as text. Needs the column headers."""
    from pyspark.sql import functions as f

    by_name = f.map_from_entries(f.coalesce(f.col("headers"), f.array().cast("array<struct<key:string,value:binary>>")))
    found = records.withColumn("_h", by_name)

    def header(name: str) -> Column:
        return f.col("_h").getItem(name).cast("string")

    return found.select(
        header(ERROR).alias("error"),
        header(STAGE).alias("stage"),
        header(EXPECTATION).alias("expectation"),
        header(TOPIC).alias("source_topic"),
        header(PARTITION).cast("int").alias("source_partition"),
        header(OFFSET).cast("bigint").alias("source_offset"),
        f.col("key").cast("string").alias("key"),
        f.col("value").cast("string").alias("value"),
        f.col("topic").alias(columns.TOPIC),
        f.col("partition").alias(columns.PARTITION),
        f.col("offset").alias(columns.OFFSET),
        f.col("timestamp").alias(columns.TIMESTAMP),
    )
