"""The whole file of a pipeline. Pure."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field, field_validator

from headwater.pipelines.definition.model import Model, Name, Path, Shown, identifier, named_topics
from headwater.pipelines.definition.secret_text import SecretText, masked_secrets, references_shown
from headwater.pipelines.definition.stage import Stage
from headwater.pipelines.definition.tables import Table
from headwater.pipelines.definition.tests import PipelineTest
from headwater.pipelines.definition.topics import Registry, Topic

STAGES_MAX = 100  # one streaming query each: beyond that, split the pipeline across drivers
TESTS_MAX = 1_000

Variables: TypeAlias = Annotated[dict[str, str], Shown("name: text")]
SparkConf: TypeAlias = Annotated[dict[str, SecretText], AfterValidator(masked_secrets), Shown("name: value")]


def variables_as_text(value: Any) -> Any:
    """Convert numbers to text; references to secrets remain references."""
    if not isinstance(value, dict):
        return value
    texts = {n: str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v for n, v in value.items()}
    return {n: references_shown(v) if isinstance(v, str) else v for n, v in texts.items()}


def checkpoints_url(value: str) -> str:
    """Check the place of checkpoints. Raises ValueError."""
    if value and not value.startswith("hdfs://") and not value.startswith("file:///"):
        raise ValueError("checkpoints are kept at an hdfs:// URL, such as hdfs:///checkpoints")
    return value


CheckpointsUrl: TypeAlias = Annotated[str, AfterValidator(checkpoints_url), Shown("URL")]


class Environment(Model):
    """Settings of one environment, selected by `--env`."""

    variables: Variables = Field(
        default_factory=dict, description="variables of this environment; `--set` takes precedence"
    )
    spark: SparkConf = Field(
        default_factory=dict, description="Spark settings; they take precedence over those of the file"
    )
    registry: Annotated[Registry | None, Shown("registry")] = Field(
        default=None, description="schema registry, instead of that of the file"
    )
    # Checked once it is chosen: its variables may have their values in this environment alone.
    checkpoints: Annotated[str, Shown("URL")] = Field(
        default="", description="URL of checkpoints, instead of that of the file"
    )

    _texts = field_validator("variables", mode="before")(variables_as_text)


class Pipeline(Model):
    """The whole file."""

    pipeline: Name = Field(description="pipeline name, used for its state folder and in the names of its queries")
    include: Annotated[tuple[Path, ...], Shown("list of paths")] = Field(
        default=(), description="files whose variables, topics, tables, stages and tests are included"
    )
    variables: Variables = Field(
        default_factory=dict,
        description="values of `${name}`; the environment and `--set name=value` override them",
    )
    environments: Annotated[dict[str, Environment], Shown("name: environment")] = Field(
        default_factory=dict, description="settings by environment; `--env name` selects one"
    )
    registry: Annotated[Registry | None, Shown("registry")] = Field(
        default=None, description="schema registry for `avro`, `protobuf` and `json_schema`"
    )
    spark: SparkConf = Field(
        default_factory=dict,
        description="Spark settings, such as `spark.sql.shuffle.partitions`; `--conf` takes precedence",
    )
    checkpoints: CheckpointsUrl = Field(
        default="",
        description="URL below which checkpoints and records are kept, such as `hdfs:///checkpoints`, so that another "
        "machine can take the pipeline over; by default in the state folder; `--checkpoints` takes precedence",
    )
    topics: Annotated[dict[str, Topic], Shown("name: topic")] = Field(
        default_factory=dict, description="declared topics, with their formats and columns"
    )
    tables: Annotated[dict[str, Table], Shown("name: table")] = Field(
        default_factory=dict, description="tables for joins"
    )
    stages: Annotated[tuple[Stage, ...], Shown("list of stages")] = Field(
        min_length=1, max_length=STAGES_MAX, description="stages, in any order"
    )
    tests: Annotated[tuple[PipelineTest, ...], Shown("list of tests")] = Field(
        default=(), max_length=TESTS_MAX, description="tests of stages, run by `headwater pipeline test`"
    )

    _texts = field_validator("variables", mode="before")(variables_as_text)

    _topic_names = field_validator("topics")(named_topics)

    @field_validator("tables", "environments")
    @classmethod
    def _names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            identifier(name)
        return value

    def stage(self, name: str) -> Stage:
        """Return the stage with a name. Raises KeyError for an unknown name."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)
