"""Refused records, stored in `<topic>.dead_letters`.

A dead letter is the original record with the same key, value and headers, so that it can be produced again after the
fault is fixed; Headwater's headers, appended to the record's, describe the failure. A row without its record's origin
(an aggregate, or SQL that omits the origin columns) is written as JSON instead, without the headers of the origin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.dead_letters.headers import (
    ERROR,
    EXPECTATION,
    FILE,
    OFFSET,
    PARTITION,
    PIPELINE,
    PREFIX,
    REPLAYED,
    STAGE,
    TOPIC,
)
from headwater.pipelines.formats import ValueColumns, format_of
from headwater.pipelines.spark.source_order import by_source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OWN = "_own_headers"
_LETTER = "_letter"


def _headers(pairs: list[tuple[str, Column]]) -> Column:
    """The headers, omitting null values."""
    from pyspark.sql import functions as f

    made = f.array(*(f.struct(f.lit(k).alias("key"), v.cast("string").cast("binary").alias("value")) for k, v in pairs))
    return f.filter(made, lambda header: header["value"].isNotNull())


def undecodable(rejected: DataFrame, pipeline: str, stage: str, headers: DataFrame | None = None) -> DataFrame:
    """Dead letters (key, value, headers) of undecodable records and lines; late records have the same form.

    Records have the columns of ORIGIN and ERROR, lines of files VALUE, FILE and ERROR. `headers` are the records'
    headers by topic, partition and offset.
    """
    from pyspark.sql import functions as f

    pairs = [(ERROR, f.col(columns.ERROR)), (PIPELINE, f.lit(pipeline)), (STAGE, f.lit(stage))]
    is_record = columns.TOPIC in rejected.columns
    pairs += _origin() if is_record else [(FILE, f.col(columns.FILE))]
    key = f.col(columns.KEY) if is_record else f.lit(None).cast("binary")
    found, said = _with_own(rejected, headers if is_record else None, _headers(pairs))
    return found.select(key.alias("key"), f.col(columns.VALUE).alias("value"), said.alias("headers"))


def unmet(
    rows: DataFrame, pipeline: str, stage: str, conditions: dict[str, str], headers: DataFrame | None = None
) -> DataFrame:
    """Dead letters of rows with a violated expectation in FAILED.

    `conditions` are the expectations' texts by name; `headers` are the records' headers by topic, partition and offset.
    """
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
    value = f.col(columns.VALUE) if whole else format_of("json").encode(rows, ValueColumns())
    found, made = _with_own(rows.withColumn(_LETTER, value), headers if known else None, _headers(pairs))
    return found.select(key.alias("key"), f.col(_LETTER).alias("value"), made.alias("headers"))


def _with_own(rows: DataFrame, headers: DataFrame | None, said: Column) -> tuple[DataFrame, Column]:
    """Rows in source order, joined with their records' headers; and these headers followed by Headwater's.

    Of headers with Headwater's prefix, left from an earlier dead letter, only the count of replays is kept.
    """
    from pyspark.sql import functions as f

    if headers is None:
        return rows, said
    place = [columns.TOPIC, columns.PARTITION, columns.OFFSET]
    # Dead letters are few, headers may be many: headers of other records are dropped before the join.
    wanted = headers.join(rows.select(*place).distinct(), place, "left_semi").withColumnRenamed("headers", _OWN)
    own = f.filter(_OWN, lambda header: ~header["key"].startswith(PREFIX) | (header["key"] == REPLAYED))
    empty = f.array().cast("array<struct<key:string,value:binary>>")
    joined = rows.join(wanted, place, "left")
    # A join may shuffle: dead letters of one key are sorted back into source order.
    key = f.col(columns.KEY) if columns.KEY in rows.columns else f.lit(None).cast("binary")
    return by_source(joined, key, place), f.concat(f.coalesce(own, empty), said)


def _origin() -> list[tuple[str, Column]]:
    from pyspark.sql import functions as f

    return [(TOPIC, f.col(columns.TOPIC)), (PARTITION, f.col(columns.PARTITION)), (OFFSET, f.col(columns.OFFSET))]


def readable(records: DataFrame) -> DataFrame:
    """Dead letters in readable form: headers as columns, key and value as text. Needs the column `headers`."""
    from pyspark.sql import functions as f

    empty = f.array().cast("array<struct<key:string,value:binary>>")
    # The record's own headers may repeat a name.
    ours = f.filter(f.coalesce(f.col("headers"), empty), lambda header: header["key"].startswith(PREFIX))
    by_name = f.map_from_entries(ours)
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
