"""The columns of an archived topic: as they are declared, and with an archive's own rule for values that do not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headwater.pipelines.analysis.topic_schemas import declared_topic_columns
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import FROM_REGISTRY, Loaded
from headwater.pipelines.formats import ValueColumns
from headwater.pipelines.sources.known_columns import KnownColumns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["archived_columns", "columns_may_change"]


def archived_columns(spark: SparkSession, loaded: Loaded, topic: str, brokers: Brokers) -> KnownColumns:
    """The columns of a topic, without `incompatible: fail`: what an archive does with a value is its own `on_error`.

    Raises PipelineError.
    """
    known = declared_topic_columns(spark, loaded, topic, brokers)
    events = {name: _stored(each) for name, each in known.events.items()}
    return dataclasses.replace(known, values=_stored(known.values), keys=_stored(known.keys), events=events)


def columns_may_change(loaded: Loaded, topic: str) -> bool:
    """Whether a topic's columns are to be found each time: a producer registers a schema before it writes by it."""
    declared = loaded.pipeline.topics.get(topic)
    if declared is None:
        return False
    return FROM_REGISTRY in (declared.schema_source, declared.key_schema) or bool(declared.events)


def _stored(columns: Mapping[str, ValueColumns]) -> dict[str, ValueColumns]:
    return {
        name: each
        if each.reader is None
        else dataclasses.replace(each, reader=dataclasses.replace(each.reader, fails=False))
        for name, each in columns.items()
    }
