"""Loads declared in YAML: which topics, with which values, into which targets. Pure: the file reader is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.includes import ReadFile
from headwater.pipelines.definition.model import Model, Shown, topic_name
from headwater.pipelines.definition.topic_file import TopicFile, parse_topic_file
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


class LoadsFile(TopicFile):
    """The whole file."""

    loads: tuple[LoadDeclaration, ...] = Field(min_length=1, max_length=LOADS_MAX, description="what to load")


def parse_loads(
    text: str, file: str, variables: Mapping[str, str], folder: str, environ: Mapping[str, str], read_file: ReadFile
) -> tuple[LoadsFile, Loaded]:
    """Check a file's text. Returns the loads, and a pipeline without stages that declares their topics.

    Raises PipelineError with every problem.
    """
    return parse_topic_file(LoadsFile, "loads", text, file, variables, folder, environ, read_file)
