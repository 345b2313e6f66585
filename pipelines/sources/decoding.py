"""Decodes a topic's records to an input's rows: by format, event type and envelope, with their keys.

A decoded frame has the input's columns, `columns.ORIGIN` and `columns.ERROR`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines.formats import ValueColumns, format_of, json, keys
from headwater.pipelines.formats.origin import records_schema
from headwater.pipelines.sources import debezium, events

__all__ = [
    "decode_input",
    "decode_topic",
    "empty_records",
    "json_fields",
    "needs_headers",
    "records_schema",
    "topic_json_fields",
    "topic_needs_headers",
]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.datasource.json_fields import JsonFields
    from headwater.pipelines.definition import TopicSource
    from headwater.pipelines.sources.known_columns import KnownColumns


def needs_headers(known: KnownColumns, source: TopicSource) -> bool:
    """Whether an input's records must be read with their headers."""
    return topic_needs_headers(known, source.topic)


def topic_needs_headers(known: KnownColumns, name: str) -> bool:
    """The same for a topic."""
    topic = known.topics.get(name)
    return topic is not None and topic.event_type is not None and topic.event_type.header is not None


def json_fields(known: KnownColumns, source: TopicSource) -> JsonFields | None:
    """Fields that the reading tasks of an input can parse; None where Spark parses all, or no fields are parsed."""
    return topic_json_fields(known, source.topic) if source.envelope is None else None


def topic_json_fields(known: KnownColumns, name: str) -> JsonFields | None:
    """The same for a topic."""
    value = known.value_format(name)
    if name in known.events or value not in ("json", "json_schema"):
        return None
    return json.fields_of(known.values.get(name, ValueColumns()), framed=value == "json_schema")


def decode_input(known: KnownColumns, records: DataFrame, source: TopicSource) -> DataFrame:
    """The rows of an input."""
    if source.envelope is None:
        return decode_topic(known, records, source.topic, source.event)
    wanted = known.values.get(source.topic, ValueColumns())
    changes = debezium.without_tombstones(records)
    if known.value_format(source.topic) == "avro":
        decoded = known.decode(changes, source.topic)  # the topic's schema is the envelope's
    else:
        decoded = format_of(known.value_format(source.topic)).decode(changes, debezium.envelope_of(wanted))
    return _with_key(known, debezium.flattened(decoded, wanted), source.topic)


def decode_topic(known: KnownColumns, records: DataFrame, name: str, event: str | None = None) -> DataFrame:
    """The rows of a topic: all of its event types, or one."""
    topic = known.topics.get(name)
    declared = known.events.get(name)
    if topic is None or declared is None:
        decoded = known.decode(records, name)
    elif topic.value in ("json", "json_schema"):
        assert topic.event_type is not None, "the model asks for it"
        is_framed = topic.value == "json_schema"
        if event is not None:
            decoded = events.of_one(records, topic.event_type, event, declared[event], is_framed=is_framed)
        else:
            decoded = events.of_all(records, topic.event_type, declared, is_framed=is_framed)
    else:
        decoded = events.of_framed(records, topic.event_type, event, declared)
    return _with_key(known, decoded, name)


def _with_key(known: KnownColumns, decoded: DataFrame, name: str) -> DataFrame:
    """The decoded rows with the column `key`, if the topic's keys have a format with fields."""
    wanted, topic = known.keys.get(name), known.topics.get(name)
    if wanted is None or topic is None or topic.key is None:
        return decoded
    return keys.with_key(decoded, topic.key, wanted)


def empty_records(session: SparkSession) -> DataFrame:
    """An empty frame of records with headers, for the analysis to decode."""
    return session.createDataFrame([], records_schema())
