"""Converts rows to a topic's records, and writes them at least once. `exactly_once` writes exactly once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headwater.pipelines import columns
from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.formats.topic_encoding import Encoding
from headwater.pipelines.formats.topic_encoding import plain as plain_encoding
from headwater.pipelines.sources import topic as source
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.source_order import by_source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from headwater.pipelines.definition import Loaded, Stage, TopicSink
    from headwater.pipelines.sinks.kind import Encodings

# Nodes of a physical plan after which rows are no longer in source order. A column of such a name only causes an
# unnecessary sort.
_REORDERS: Final = re.compile(r"(?<!Broadcast)\bExchange\b|\bShuffleQueryStage\b|\bAQEShuffleRead\b|\bSort \[")

_READABLE: Final = ("json", "string", "raw", "csv")  # values of other formats are shown as JSON


def records(rows: DataFrame, sink: TopicSink, encoding: Encoding) -> DataFrame:
    """The records to write: key and value, binary; `headers` and `timestamp_ms` if the sink declares them.

    Raises ValueError if the rows do not fit the topic's format.
    """
    from pyspark.sql import functions as f

    key = _encoded_key(rows, sink, encoding)
    value = encoding.value(rows) if sink.value is None else _given_value(rows, sink.value, encoding)
    if sink.tombstone_when is not None:
        # A null condition counts as false.
        value = f.when(f.expr(sink.tombstone_when).cast("boolean"), f.lit(None).cast("binary")).otherwise(value)
    made = [key.alias("key"), value.alias("value")]
    if sink.headers:
        pairs = [(name, _binary(rows, expression)) for name, expression in sink.headers.items()]
        made.append(headers(pairs).alias("headers"))
    if sink.timestamp is not None:
        made.append(f.unix_millis(f.expr(sink.timestamp).cast("timestamp")).alias("timestamp_ms"))
    return rows.select(*made)


def headers(pairs: Sequence[tuple[str, Column]]) -> Column:
    """The column `headers` from (name, binary value) pairs, omitting null values."""
    from pyspark.sql import functions as f

    made = f.array(*(f.struct(f.lit(name).alias("key"), value.alias("value")) for name, value in pairs))
    return f.filter(made, lambda header: header["value"].isNotNull())


def in_source_order(rows: DataFrame, sink: TopicSink, *, is_stateful: bool) -> DataFrame:
    """The rows, with those of one key and one source partition in the order of their source offsets.

    Rows are already in this order unless a step shuffled or sorted them. In that case, if the rows still have the
    columns of their origin, all rows of a key are brought together and sorted. Rows without these columns (aggregates)
    have no such order.
    """
    origin = [name for name in (columns.TOPIC, columns.PARTITION, columns.OFFSET) if name in rows.columns]
    if sink.key is None or columns.PARTITION not in origin or columns.OFFSET not in origin:
        return rows
    if not is_stateful and not reorders(rows):
        return rows
    return by_source(rows, _key(rows, sink), origin)


def reorders(rows: DataFrame) -> bool:
    """Whether the physical plan may change the source order of rows."""
    return _REORDERS.search(jvm.physical_plan_text(rows)) is not None


def _key(rows: DataFrame, sink: TopicSink) -> Column:
    from pyspark.sql import functions as f

    return f.lit(None).cast("binary") if sink.key is None else _binary(rows, sink.key)


def _encoded_key(rows: DataFrame, sink: TopicSink, encoding: Encoding) -> Column:
    from pyspark.sql import functions as f

    if sink.key is None:
        return _key(rows, sink)
    made = encoding.key(f.expr(sink.key), expression_type(rows, sink.key))
    return _key(rows, sink) if made is None else made


def _given_value(rows: DataFrame, expression: str, encoding: Encoding) -> Column:
    from pyspark.sql import functions as f

    made = encoding.value_of(f.expr(expression), expression_type(rows, expression))
    return _binary(rows, expression) if made is None else made


def expression_type(rows: DataFrame, expression: str) -> DataType:
    """The type of an SQL expression."""
    from pyspark.sql import functions as f

    return rows.select(f.expr(expression).alias("x")).schema["x"].dataType


def _binary(rows: DataFrame, expression: str) -> Column:
    """An SQL expression as bytes: binary unchanged, structures as JSON, other types as text."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    column = f.expr(expression)
    kind = expression_type(rows, expression)
    if isinstance(kind, BinaryType):
        return column
    if isinstance(kind, StructType | ArrayType | MapType):
        return f.to_json(column).cast("binary")
    return column.cast("string").cast("binary")


def write_records(frame: DataFrame, topic: str, bootstrap_servers: Brokers, compression: str = "none") -> None:
    """Write records at least once; returns after every record is acknowledged.

    A micro-batch repeated after a crash writes its records again.
    """
    from headwater.pipelines.datasource.writing import TIMESTAMP_COLUMN

    (
        frame.withColumnRenamed("timestamp_ms", TIMESTAMP_COLUMN)
        .write.format(source.SPARK_FORMAT)
        .options(**connection_options(bootstrap_servers))
        .option("topic", topic)
        .option("kafka.compression.type", compression)
        .mode("append")
        .save()
    )


class TopicKind:
    """See `SinkKind`."""

    def check(self, _loaded: Loaded, sink: TopicSink, rows: DataFrame, encodings: Encodings) -> None:
        """Check that the rows fit the topic's format, which the analysis has determined."""
        made = records(rows, sink, encodings[sink.topic]).columns
        assert made[:2] == ["key", "value"], f"a topic sink made {made}"

    def shown(self, sink: TopicSink, rows: DataFrame, encodings: Encodings) -> DataFrame:
        """Key, value, headers and timestamp as text. Formats with a registry are shown as JSON, without a request."""
        from pyspark.sql import functions as f

        encoding = encodings[sink.topic]
        if encoding.value_format not in _READABLE or encoding.key_format not in (None, "string", "raw"):
            encoding = plain_encoding("json", sink.topic)
        made = records(rows, sink, encoding)
        shown = [f.col(name).cast("string").alias(name) for name in ("key", "value")]
        if "headers" in made.columns:
            texts = f.transform("headers", lambda h: f.concat(h["key"], f.lit("="), h["value"].cast("string")))
            shown.append(texts.alias("headers"))
        if "timestamp_ms" in made.columns:
            shown.append(f.timestamp_millis("timestamp_ms").alias("timestamp"))
        return made.select(*shown)

    def stored(self, sink: TopicSink, rows: DataFrame) -> None:
        """None: the columns of a topic are recorded by topic, with its format."""

    def writer(self, loaded: Loaded, stage: Stage, sink: TopicSink) -> None:
        """None: `batch_writing` writes all topics together, last."""
