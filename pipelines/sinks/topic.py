"""Rows to a topic, at least once: a micro-batch that runs again after a crash writes its records again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.formats import format_of
from pipelines.sources import topic as source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pipelines.spec import TopicSink


def records(rows: DataFrame, sink: TopicSink, value_format: str) -> DataFrame:
    """The records to write: columns key and value, binary. ValueError if the rows do not suit the topic's format.

    Rows keep their order within a task, hence records of one key and one source partition keep theirs.
    """
    from pyspark.sql import functions as f

    key = f.lit(None).cast("binary") if sink.key is None else _binary(rows, sink.key)
    value = format_of(value_format).encode(rows) if sink.value is None else _binary(rows, sink.value)
    return rows.select(key.alias("key"), value.alias("value"))


def _binary(rows: DataFrame, expression: str) -> Column:
    """An SQL expression as bytes: bytes as they are, structures as JSON, the rest as text."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    column = f.expr(expression)
    kind = rows.select(column.alias("x")).schema["x"].dataType
    if isinstance(kind, BinaryType):
        return column
    if isinstance(kind, StructType | ArrayType | MapType):
        return f.to_json(column).cast("binary")
    return column.cast("string").cast("binary")


def write(rows: DataFrame, sink: TopicSink, value_format: str, bootstrap_servers: str) -> None:
    """Write one micro-batch; returns when every record is acknowledged."""
    write_records(records(rows, sink, value_format), sink.topic, bootstrap_servers)


def write_records(frame: DataFrame, topic: str, bootstrap_servers: str, *, headers: bool = False) -> None:
    """Write key, value and, with `headers`, headers. Spark's own Kafka sink takes headers by the same option."""
    writer = (
        frame.write.format(source.SPARK_FORMAT)
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", topic)
        .mode("append")
    )
    (writer.option("includeHeaders", "true") if headers else writer).save()
