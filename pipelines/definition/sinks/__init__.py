"""`to:`: the sinks of a stage, one module per kind. Pure."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Discriminator, Tag

from headwater.pipelines.definition.model import kind_of
from headwater.pipelines.definition.sinks.delta import DeltaSink, Merge
from headwater.pipelines.definition.sinks.files import FilesSink
from headwater.pipelines.definition.sinks.jdbc import JdbcSink
from headwater.pipelines.definition.sinks.model import SinkModel
from headwater.pipelines.definition.sinks.python import PythonSink
from headwater.pipelines.definition.sinks.topic import TopicSink

__all__ = ["DeltaSink", "FilesSink", "JdbcSink", "Merge", "PythonSink", "Sink", "SinkModel", "TopicSink"]

Sink: TypeAlias = Annotated[
    Annotated[TopicSink, Tag("topic")]
    | Annotated[DeltaSink, Tag("delta")]
    | Annotated[FilesSink, Tag("files")]
    | Annotated[JdbcSink, Tag("jdbc")]
    | Annotated[PythonSink, Tag("python")],
    Discriminator(
        kind_of("topic", "delta", "files", "jdbc", "python"),
        custom_error_type="kind",
        custom_error_message="a sink names one of topic, delta, files, jdbc, python",
    ),
]
