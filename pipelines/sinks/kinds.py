"""The kinds of sinks: one entry each; the kind's module has all its code that needs Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headwater.pipelines.definition import DeltaSink, FilesSink, JdbcSink, PythonSink, Sink, TopicSink
from headwater.pipelines.sinks.delta.delta_kind import DeltaKind
from headwater.pipelines.sinks.files import FilesKind
from headwater.pipelines.sinks.jdbc import JdbcKind
from headwater.pipelines.sinks.kind import SinkKind
from headwater.pipelines.sinks.python import PythonKind
from headwater.pipelines.sinks.topic import TopicKind

__all__ = ["SINK_KINDS", "kind_of_sink"]

SINK_KINDS: Final[Mapping[type, SinkKind[Any]]] = {
    TopicSink: TopicKind(),
    DeltaSink: DeltaKind(),
    FilesSink: FilesKind(),
    JdbcSink: JdbcKind(),
    PythonSink: PythonKind(),
}


def kind_of_sink(sink: Sink) -> SinkKind[Any]:
    """The Spark half of a sink's kind."""
    return SINK_KINDS[type(sink)]
