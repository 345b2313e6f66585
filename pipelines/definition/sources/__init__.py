"""`from:`: the inputs of a stage, one module per kind. Pure."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Discriminator, Tag

from headwater.pipelines.definition.model import kind_of
from headwater.pipelines.definition.sources.delta import DeltaSource
from headwater.pipelines.definition.sources.files import FilesSource
from headwater.pipelines.definition.sources.jdbc import JdbcSource
from headwater.pipelines.definition.sources.model import INPUT, Input, Watermark
from headwater.pipelines.definition.sources.rate import RateSource
from headwater.pipelines.definition.sources.topic import TopicSource, TopicWatermark

__all__ = [
    "INPUT",
    "DeltaSource",
    "FilesSource",
    "Input",
    "JdbcSource",
    "RateSource",
    "Source",
    "TopicSource",
    "TopicWatermark",
    "Watermark",
]

Source: TypeAlias = Annotated[
    Annotated[TopicSource, Tag("topic")]
    | Annotated[DeltaSource, Tag("delta")]
    | Annotated[FilesSource, Tag("files")]
    | Annotated[JdbcSource, Tag("jdbc")]
    | Annotated[RateSource, Tag("rate")],
    Discriminator(
        kind_of("topic", "delta", "files", "jdbc", "rate"),
        custom_error_type="kind",
        custom_error_message="a source names one of topic, delta, files, jdbc, rate",
    ),
]
