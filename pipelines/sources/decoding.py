"""A topic's records as an input's rows: by format, by event type, out of an envelope.

A decoded frame has the input's columns, `columns.ORIGIN` and `columns.ERROR`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines import columns
from pipelines.formats import ValueColumns, format_of
from pipelines.sources import debezium, events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from pipelines.analysis import Analysis
    from pipelines.spec import TopicSource


def needs_headers(analysis: Analysis, source: TopicSource) -> bool:
    """Whether records must come with their headers."""
    topic = analysis.topics.get(source.topic)
    return topic is not None and topic.event_type is not None and topic.event_type.header is not None


def decode_input(analysis: Analysis, records: DataFrame, source: TopicSource) -> DataFrame:
    """The rows of an input."""
    topic = analysis.topics.get(source.topic)
    if topic is not None and topic.event_type is not None and topic.value == "json":
        declared = analysis.events[source.topic]
        if source.event is not None:
            return events.of_one(records, topic.event_type, source.event, declared[source.event])
        return events.of_all(records, topic.event_type, declared)
    if source.envelope is None:
        return analysis.decode(records, source.topic)
    wanted = analysis.values.get(source.topic, ValueColumns())
    changes = debezium.without_tombstones(records)
    if analysis.value_format(source.topic) == "json":
        decoded = format_of("json").decode(changes, debezium.envelope_of(wanted))
    else:
        decoded = analysis.decode(changes, source.topic)  # its schema is that of the envelope
    return debezium.flattened(decoded, wanted)


def empty_records(session: SparkSession) -> DataFrame:
    """No records, with their headers: what analysis decodes."""
    return session.createDataFrame([], records_schema())


def records_schema() -> StructType:
    """Columns of records as the data source gives them, headers included."""
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(f"{columns.RECORD_DDL}, headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    assert isinstance(found, StructType)
    return found
