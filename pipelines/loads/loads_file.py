"""Loads declared in YAML: which topics, with which values, into which targets. Pure: the file reader is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.includes import ReadFile
from headwater.pipelines.definition.mistakes import problems_of
from headwater.pipelines.definition.model import Model, Shown, topic_name
from headwater.pipelines.definition.pipeline import Pipeline, SparkConf, Variables, variables_as_text
from headwater.pipelines.definition.secret_text import Secrets
from headwater.pipelines.definition.topics import Registry, Topic
from headwater.pipelines.definition.variables import resolved, substitute
from headwater.pipelines.definition.yaml_source import read
from headwater.pipelines.errors import PipelineError, Problem, nearest
from headwater.pipelines.loads.target_format import TargetFormat

__all__ = ["LoadDeclaration", "LoadsFile", "parse_loads"]

LOADS_MAX = 1_000


class LoadDeclaration(Model):
    """Topics that are loaded in one way. The command line's options take precedence."""

    topics: Annotated[tuple[str, ...], Shown("list of names")] = Field(default=(), description="topics to load")
    pattern: str | None = Field(
        default=None, min_length=1, max_length=1_000, description="regular expression of topics to load"
    )
    to: str = Field(min_length=1, description="target: a path or URL, with `{topic}` where the topics are several")
    format: TargetFormat = Field(default="delta", description="format of the target")
    start: str = Field(default="last", alias="from", description="start, as `--from`")
    until: str = Field(default="latest", description="end, as `--until`")
    partition_by: tuple[str, ...] = Field(default=(), description="partition columns, as `--partition-by`")
    timezone: str = Field(default="UTC", description="time zone of `date(...)` and `hour(...)`")
    missing: bool = Field(default=False, description="load what the target lacks of the range")
    on_gap: Literal["fail", "record"] = Field(default="fail", description="what to do about records lost by retention")
    merge_schema: bool = Field(default=False, description="add new columns to the target")
    headers: bool = Field(default=False, description="whether a raw topic's rows have the column `headers`")

    @model_validator(mode="after")
    def _which_topics(self) -> LoadDeclaration:
        if bool(self.topics) == (self.pattern is not None):
            raise ValueError("give either topics or pattern")
        return self

    @field_validator("start", "until", mode="before")
    @classmethod
    def _unquoted(cls, value: object) -> object:
        """Offsets and times as YAML reads them without quotes."""
        if isinstance(value, bool):
            return value
        return value.isoformat() if isinstance(value, date) else str(value) if isinstance(value, int) else value

    @field_validator("topics")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            topic_name(name)
        return value


class LoadsFile(Model):
    """The whole file."""

    variables: Variables = Field(default_factory=dict, description="values of `${name}`; `--set name=value` overrides")
    registry: Registry | None = Field(default=None, description="schema registry, as in a pipeline")
    spark: SparkConf = Field(default_factory=dict, description="Spark settings; `--conf` takes precedence")
    topics: dict[str, Topic] = Field(default_factory=dict, description="declared topics, as in a pipeline")
    loads: tuple[LoadDeclaration, ...] = Field(min_length=1, max_length=LOADS_MAX, description="what to load")

    _texts = field_validator("variables", mode="before")(variables_as_text)

    @field_validator("topics")
    @classmethod
    def _topic_names(cls, value: dict[str, Topic]) -> dict[str, Topic]:
        for name in value:
            topic_name(name)
        return value


def parse_loads(
    text: str, file: str, variables: Mapping[str, str], folder: str, environ: Mapping[str, str], read_file: ReadFile
) -> tuple[LoadsFile, Loaded]:
    """Check a file's text. Returns the loads, and a pipeline without stages that declares their topics.

    Raises PipelineError with every problem.
    """
    document = read(text, file)
    if not isinstance(document.values, dict):
        raise PipelineError([document.problem((), "a file of loads is a mapping", "start with `loads:`")])
    own = document.values.get("variables")
    values = {str(n): "" if v is None else str(v) for n, v in own.items()} if isinstance(own, dict) else {}
    places = {name: ("variables", name) for name in values}
    used = substitute(document, resolved(document, values | dict(variables), places), skip=frozenset({"variables"}))
    problems = [
        Problem(file, 0, 0, f"--set {name}", f"the file has no variable ${{{name}}}", nearest(name, sorted(used)))
        for name in sorted(variables.keys() - used - values.keys())
    ]
    secrets = Secrets(environ, read_file)
    try:
        found = LoadsFile.model_validate(document.values, context={"secrets": secrets})
    except ValidationError as error:
        raise PipelineError(problems + problems_of(error, document)) from None
    if problems:
        raise PipelineError(problems)
    pipeline = Pipeline.model_construct(
        pipeline="load",
        include=(),
        variables={},
        environments={},
        registry=found.registry,
        spark=found.spark,
        topics=found.topics,
        tables={},
        stages=(),
        tests=(),
    )
    return found, Loaded(pipeline, document, folder, (), "", secrets)
