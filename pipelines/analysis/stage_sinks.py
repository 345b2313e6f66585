"""Whether the rows of a stage suit its sinks, told on empty frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headwater.pipelines.analysis.topic_schemas import derive, derive_key
from headwater.pipelines.definition import DeltaSink, FilesSink, JdbcSink, Loaded, PythonSink, Sink, TopicSink
from headwater.pipelines.formats import ValueColumns
from headwater.pipelines.formats.topic_encoding import Encoding
from headwater.pipelines.sinks import delta, delta_merge, files, jdbc
from headwater.pipelines.sinks import topic as topic_sink
from headwater.pipelines.sinks.stored_rows import partition_column
from headwater.pipelines.sources.known_columns import KnownColumns
from headwater.pipelines.spark.nullable import nullable
from headwater.pipelines.transforms import python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class TopicColumns:
    """What is known with a sink's topic, and how that is written."""

    columns: KnownColumns
    encoding: Encoding


def topic_columns(
    loaded: Loaded, sink: TopicSink, rows: DataFrame, known: KnownColumns, encoding: Encoding | None
) -> TopicColumns:
    """Raises ValueError, or what Spark says, if the topic cannot take the rows.

    A topic without a schema of its own has from now on the columns of these rows. `encoding` is the topic's so far.
    """
    topic = sink.topic
    values = derive(loaded, known, topic, rows) if sink.value is None else None
    if values is not None:
        known = replace(known, values={**known.values, topic: values.columns})
    if encoding is None:
        encoding = Encoding(topic, known.value_format(topic), known.values.get(topic, ValueColumns()))
    if values is not None and values.part is not None:
        encoding = replace(encoding, wanted=values.columns, value_part=values.part)
    if sink.key is not None and encoding.key_part is None:
        keys = derive_key(loaded, known, topic, topic_sink.expression_type(rows, sink.key))
        if keys is not None:
            known = replace(known, keys={**known.keys, topic: keys.columns})
            encoding = replace(encoding, key_part=keys.part)
    made = topic_sink.records(rows, sink, encoding).columns
    assert made[:2] == ["key", "value"], f"a topic sink made {made}"
    return TopicColumns(known, encoding)


def check_sink(loaded: Loaded, sink: Sink, rows: DataFrame) -> None:
    """Raises ValueError, python.UserCodeError, or what Spark says, if a sink that is no topic cannot write the rows."""
    if isinstance(sink, DeltaSink):
        if sink.merge is not None:
            delta_merge.check(rows, sink)
        names = [*(partition_column(expression)[0] for expression in sink.partition_by), *sink.cluster_by]
        delta.table_rows(rows, sink).select(*(f"`{name}`" for name in names)).schema  # noqa: B018 - analysed here
    elif isinstance(sink, FilesSink):
        names = [partition_column(expression)[0] for expression in sink.partition_by]
        held = files.file_rows(rows, sink)
        held.select(*(f"`{name}`" for name in names)).schema  # noqa: B018 - analysed here
        if len(names) == len(held.columns):
            raise ValueError("the files would have no columns: every one is a partition's")
    elif isinstance(sink, JdbcSink):
        jdbc.check(rows, sink)
    elif isinstance(sink, PythonSink):
        python.load(loaded.path(sink.python.file), sink.python.function)


def stored_columns(rows: DataFrame, sink: DeltaSink) -> StructType:
    """Columns of the table that a sink writes."""
    held = delta_merge.stored(rows, sink) if sink.merge is not None else delta.table_rows(rows, sink)
    return nullable(held.schema)
