"""A topic's records as rows for queries: `NAME` with the value's columns, `log.NAME` as the log holds them.

A topic with known columns has, in this order, `_partition, _offset, _timestamp, _key`, the value's columns, `_error`
and `_value`. A record that cannot be decoded is a row whose columns of the value are null, with the reason in `_error`
and the value in `_value`; for other records both are null. A dead-letter topic has its headers as columns. Any other
topic has the columns of `format("kafka")`.

Keys and values are text where they are UTF-8, and otherwise Spark's literal of their bytes: `X'00FF'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.dead_letters import frames as dead_letters
from headwater.pipelines.definition.graph import DEAD_LETTERS_SUFFIX
from headwater.pipelines.sources import decoding
from headwater.pipelines.sources import topic as topic_source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from headwater.pipelines.datasource.brokers import Brokers
    from headwater.pipelines.datasource.json_fields import JsonFields
    from headwater.pipelines.definition import TopicSource
    from headwater.pipelines.sources.known_columns import KnownColumns

FIRST = (columns.PARTITION, columns.OFFSET, columns.TIMESTAMP)  # before the key
RAW = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
)  # of a topic without known columns, after its value
UNDECODED = ("raw", "string")  # formats of values without columns


def text_of(bytes_column: Column) -> Column:
    """Bytes as text where they are UTF-8, else as the literal `X'…'`; null remains null."""
    from pyspark.sql import functions as f

    text = bytes_column.cast("string")
    literal = f.concat(f.lit("X'"), f.hex(bytes_column), f.lit("'"))
    return f.when(f.is_valid_utf8(text), text).otherwise(literal)


def has_columns(known: KnownColumns, topic: str) -> bool:
    """Whether the values of a topic are decoded."""
    return topic in known.topics and known.value_format(topic) not in UNDECODED and known.has_columns(topic)


def needs_headers(known: KnownColumns, topic: str) -> bool:
    """Whether the rows of a topic require its records' headers."""
    if not has_columns(known, topic):
        return topic.endswith(DEAD_LETTERS_SUFFIX)
    return decoding.topic_needs_headers(known, topic)


def fields_to_parse(known: KnownColumns, topic: str) -> JsonFields | None:
    """The fields of JSON values that the reading tasks parse, if the values are decoded."""
    return decoding.topic_json_fields(known, topic) if has_columns(known, topic) else None


def rows_of(records: DataFrame, known: KnownColumns, topic: str) -> DataFrame:
    """The rows of a topic's records, which may be a stream."""
    from pyspark.sql import functions as f

    if has_columns(known, topic):
        decoded = decoding.decode_topic(known, records, topic)
        own = [name for name in decoded.columns if name not in (*columns.ORIGIN, columns.ERROR, columns.HEADERS_SEEN)]
        error = f.col(columns.ERROR)
        return decoded.select(
            *FIRST,
            text_of(f.col(columns.KEY)).alias(columns.KEY),
            *map(columns.quoted, own),
            error,
            f.when(error.isNotNull(), text_of(f.col(columns.VALUE))).alias(columns.VALUE),
        )
    if topic.endswith(DEAD_LETTERS_SUFFIX):
        return dead_letters.readable(records)
    return records.select(*(text_of(f.col(name)).alias(name) for name in ("key", "value")), *RAW)


def present(
    spark: SparkSession,
    where: Brokers,
    topic: str,
    known: KnownColumns,
    *,
    pushdown: bool = False,
    is_kept: bool = False,
) -> DataFrame:
    """`NAME`: the records that the topic has when a query is planned. For `pushdown` see `topic.batch_between`.

    `is_kept`: the frame becomes a view, and the records are asked for by each statement.
    """
    declared = known.topics.get(topic)
    records = topic_source.batch(
        spark,
        where,
        topic,
        headers=needs_headers(known, topic),
        json_fields=fields_to_parse(known, topic),
        pushdown=pushdown,
        disorder_ms=None if declared is None else declared.timestamp_disorder_ms,
    )
    return rows_of(topic_source.asked_again(records) if is_kept else records, known, topic)


def arriving(
    spark: SparkSession, where: Brokers, source: TopicSource, known: KnownColumns, most: int | None
) -> DataFrame:
    """`NAME` as a stream from the source's start, at most `most` records in a micro-batch."""
    topic = source.topic
    headers, fields = needs_headers(known, topic), fields_to_parse(known, topic)
    return rows_of(topic_source.stream(spark, where, source, most, headers=headers, json_fields=fields), known, topic)


def log_records(
    spark: SparkSession, where: Brokers, topic: str, *, pushdown: bool = False, is_kept: bool = False
) -> DataFrame:
    """`log.NAME`: the columns of `format("kafka")`, with headers. For `is_kept` see `present`."""
    records = topic_source.batch(spark, where, topic, headers=True, pushdown=pushdown)
    return topic_source.asked_again(records) if is_kept else records


def log_arriving(spark: SparkSession, where: Brokers, source: TopicSource, most: int | None) -> DataFrame:
    """`log.NAME` as a stream."""
    return topic_source.stream(spark, where, source, most, headers=True).drop(columns.HEADERS_SEEN)
