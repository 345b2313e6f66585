"""Columns and encodings of the topics that a stage writes, determined on empty frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headwater.pipelines.analysis.topic_schemas import derive, derive_key
from headwater.pipelines.definition import Loaded, TopicSink
from headwater.pipelines.formats import ValueColumns
from headwater.pipelines.formats.topic_encoding import Encoding
from headwater.pipelines.sinks import topic as topic_sink
from headwater.pipelines.sources.known_columns import KnownColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class TopicColumns:
    """Known columns including a sink's topic, and the topic's encoding."""

    columns: KnownColumns
    encoding: Encoding


def topic_columns(
    loaded: Loaded, sink: TopicSink, rows: DataFrame, known: KnownColumns, encoding: Encoding | None
) -> TopicColumns:
    """Determine a sink topic's columns. Raises ValueError or Spark's errors if the rows do not fit the topic.

    A topic without a declared schema gets the columns of these rows. `encoding` is the topic's encoding so far.
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
    return TopicColumns(known, encoding)
