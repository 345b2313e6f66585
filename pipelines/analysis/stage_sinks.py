"""Whether the rows of a stage suit its sinks, told on empty frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines.analysis.analysis import Analysis
from headwater.pipelines.analysis.topic_schemas import derive, derive_key
from headwater.pipelines.definition import DeltaSink, FilesSink, JdbcSink, Loaded, Sink, TopicSink
from headwater.pipelines.sinks import delta, delta_merge, files, jdbc
from headwater.pipelines.sinks import topic as topic_sink
from headwater.pipelines.sinks.stored_rows import partition_column
from headwater.pipelines.transforms import python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def check_sink(loaded: Loaded, sink: Sink, rows: DataFrame, found: Analysis) -> None:
    """Raises ValueError, python.UserCodeError, or what Spark says, if the sink cannot write the rows.

    A topic without a schema of its own has from now on the columns of these rows.
    """
    if isinstance(sink, TopicSink):
        if sink.value is None:
            derive(loaded, found, sink.topic, rows)
        if sink.key is not None:
            derive_key(loaded, found, sink.topic, topic_sink.expression_type(rows, sink.key))
        made = topic_sink.records(rows, sink, found.encoding(sink.topic)).columns
        assert made[:2] == ["key", "value"], f"a topic sink made {made}"
    elif isinstance(sink, DeltaSink):
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
    else:
        python.load(loaded.path(sink.python.file), sink.python.function)


def stored_columns(rows: DataFrame, sink: DeltaSink) -> StructType:
    """Columns of the table that a sink writes."""
    held = delta_merge.stored(rows, sink) if sink.merge is not None else delta.table_rows(rows, sink)
    return delta.nullable(held.schema)
