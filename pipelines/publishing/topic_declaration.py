"""The topic that a publish writes to, declared as in a pipeline: by options, or by a pipeline's file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from headwater.pipelines.analysis.stage_sinks import topic_columns
from headwater.pipelines.analysis.topic_schemas import find_declared
from headwater.pipelines.definition import Loaded, Pipeline, Registry, Stage, Topic, TopicSink
from headwater.pipelines.definition.yaml_source import Document
from headwater.pipelines.formats.registry_client import RegistryError
from headwater.pipelines.publishing.errors import PublishRefused
from headwater.pipelines.sinks import topic as topic_sink
from headwater.pipelines.sources.known_columns import KnownColumns
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.datasource.brokers import Brokers
    from headwater.pipelines.formats.topic_encoding import Encoding
    from headwater.pipelines.publishing.request import PublishRequest

__all__ = ["DeclaredTopic", "declared_topic"]

_PLACE = "the options"  # stands for a file's name where there is none


@dataclass(frozen=True, slots=True)
class DeclaredTopic:
    """A topic with its sink, in a pipeline of this one stage."""

    loaded: Loaded
    sink: TopicSink

    def encoding(self, spark: SparkSession, rows: DataFrame, brokers: Brokers) -> Encoding:
        """How rows become the topic's records. Raises PublishRefused if their columns do not fit."""
        from pyspark.errors import PySparkException

        topic = self.sink.topic
        declared = find_declared(spark, self.loaded, KnownColumns(self.loaded.pipeline.topics), brokers)
        if declared.problems:
            problem = declared.problems[0]
            is_of_file = problem.file != _PLACE
            hint = f"; {problem.hint}" if problem.hint else ""
            raise PublishRefused(str(problem) if is_of_file else f"{problem.message}{hint}")
        try:
            found = topic_columns(self.loaded, self.sink, rows, declared.columns, declared.encodings.get(topic))
            topic_sink.records(rows, self.sink, found.encoding).schema  # noqa: B018 - analysed here
            found.encoding.ready()
        except PySparkException as error:
            raise PublishRefused(f"Spark refuses an expression: {first_line(error)}") from None
        except (ValueError, RegistryError) as error:
            raise PublishRefused(self.loaded.redacted(str(error))) from None
        return found.encoding


def declared_topic(
    request: PublishRequest, declared: Mapping[str, Any], registry_url: str | None, pipeline: Loaded | None
) -> DeclaredTopic:
    """The topic by options (the fields of a topic in YAML), or as a pipeline declares it. Raises PublishRefused."""
    own = pipeline.pipeline.topics.get(request.topic) if pipeline is not None else None
    if own is not None and declared:
        raise PublishRefused(
            f"the pipeline declares the topic {request.topic}: leave its format and schemas to the pipeline"
        )
    registry = pipeline.pipeline.registry if pipeline is not None else None
    if registry is not None and registry_url is not None:
        raise PublishRefused("the pipeline names a registry: leave out --registry")
    try:
        topic = own or Topic.model_validate(dict(declared))
        if registry is None and registry_url is not None:
            registry = Registry.model_validate({"url": registry_url})
        sink = {
            "topic": request.topic,
            "key": request.key,
            "value": request.value,
            "headers": dict(request.headers),
            "timestamp": request.timestamp,
            "compression": request.compression,
        }
        stage = Stage.model_validate(
            {
                "name": "publish",
                "from": {"files": request.path, "format": "json"},
                "to": {name: value for name, value in sink.items() if value not in (None, {})},
            }
        )
    except ValidationError as error:
        raise PublishRefused(_first_mistake(error)) from None
    made = Pipeline.model_construct(
        pipeline="publish", registry=registry, topics={request.topic: topic}, stages=(stage,)
    )
    if pipeline is not None:
        loaded = Loaded(made, pipeline.document, pipeline.folder, (), pipeline.environment, pipeline.secrets)
    else:
        loaded = Loaded(made, Document(_PLACE), os.getcwd())
    [written] = stage.topic_sinks
    return DeclaredTopic(loaded, written)


def _first_mistake(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message
