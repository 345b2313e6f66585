"""Columns of inputs and tables from the pipeline's file and its schemas, without a JVM.

None means that the columns are unknown without Spark: a test's rows are then checked when the test runs.
"""

from __future__ import annotations

import os

from headwater.pipelines import columns
from headwater.pipelines.definition import (
    FilesSource,
    FilesTable,
    Loaded,
    RateSource,
    Source,
    Table,
    TopicSource,
    TopicTable,
)
from headwater.pipelines.definition.file_formats import is_columns
from headwater.pipelines.definition.topics import Event, Topic
from headwater.pipelines.formats import json_schema
from headwater.pipelines.rows.column_types import ColumnType, fields_of, from_ddl, struct
from headwater.pipelines.sources import rate
from headwater.pipelines.sources.debezium import SEQUENCE

Found = dict[str, ColumnType] | None

_PLAIN: dict[str, dict[str, ColumnType]] = {
    "raw": {"key": "binary", "value": "binary"},
    "string": {"key": "string", "value": "string"},
}


def of_input(loaded: Loaded, source: Source) -> Found:
    """Columns of an input, without the columns of a record's origin."""
    if isinstance(source, TopicSource):
        return _of_topic(loaded, source)
    if isinstance(source, FilesSource):
        return _of_schema(loaded, source.schema_source)
    return from_ddl(rate.DDL) if isinstance(source, RateSource) else None


def of_table(loaded: Loaded, table: Table) -> Found:
    """Columns of a table."""
    if isinstance(table, FilesTable):
        return _of_schema(loaded, table.schema_source)
    if isinstance(table, TopicTable):
        declared = loaded.pipeline.topics.get(table.topic)
        return None if declared is None else _of_values(loaded, declared)
    return None


def _of_topic(loaded: Loaded, source: TopicSource) -> Found:
    declared = loaded.pipeline.topics.get(source.topic)
    if declared is None:
        return None
    if declared.events:
        return _of_events(loaded, declared, source.event)
    found = _of_values(loaded, declared)
    if found is None or source.envelope is None:
        return found
    after = found.get("after")
    row = fields_of(after) if "op" in found and isinstance(after, dict) and after["type"] == "struct" else found
    return {**row, columns.OPERATION: "string", SEQUENCE: "long"}


def _of_values(loaded: Loaded, declared: Topic) -> Found:
    if declared.key not in (None, "raw", "string"):
        return None  # keys with fields are columns, too
    if declared.value in _PLAIN:
        return _PLAIN[declared.value]
    return _of_json(loaded, declared) if declared.value == "json" else None


def _of_events(loaded: Loaded, declared: Topic, event: str | None) -> Found:
    if declared.value != "json" or declared.key not in (None, "raw", "string"):
        return None
    if event is not None:
        return _of_json(loaded, declared.events[event]) if event in declared.events else None
    found: dict[str, ColumnType] = {"_event": "string"}
    for name, one in declared.events.items():
        columns = _of_json(loaded, one)
        if columns is None:
            return None
        found[name] = struct(columns)
    return found


def _of_json(loaded: Loaded, declared: Topic | Event) -> Found:
    return None if declared.schema_file is None else _of_schema(loaded, declared.schema_file)


def _of_schema(loaded: Loaded, schema: str | None) -> Found:
    """Columns of a `schema:`; None for an unusable file, which other checks report."""
    if schema is None:
        return None
    if is_columns(schema):
        return from_ddl(schema)
    path = loaded.path(schema)
    if "://" in path or not path.endswith(".json") or not os.path.isfile(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return from_ddl(json_schema.parse(file.read(json_schema.SCHEMA_BYTES_MAX + 1)).ddl)
    except (OSError, ValueError):
        return None
