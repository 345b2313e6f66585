"""YAML -> a typed pipeline. Pure: text in, `Pipeline` or every problem at once out.

The models are the format's definition: a field that is not here is refused by name, and docs/reference/pipeline_yaml.md
must describe each one (a test compares them).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from pipelines.errors import PipelineError, Problem, nearest
from pipelines.yaml_source import Document, Loc, read, substitute

STAGES_MAX = 100  # one streaming query each: a driver with more is several pipelines
PARTITIONS_MAX = 10_000  # of one topic; the log tier is dimensioned for 5,000 a broker
TOPIC_NAME_LENGTH_MAX = 249  # Kafka's limit: the folder name `topic-partition` must fit a file name

ValueFormat = Literal["json", "string", "raw"]
Otherwise = Literal["drop", "fail", "dead_letter"]

_TOPIC_NAME = re.compile(r"^[A-Za-z0-9._-]+$")
_IDENTIFIER = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*$")
_INTERVAL = re.compile(r"^\s*\d+\s*(microsecond|millisecond|second|minute|hour|day|week)s?\s*$", re.IGNORECASE)


def topic_name(name: str) -> str:
    """Kafka's rule for topic names.

    >>> topic_name("flights.dead_letters")
    'flights.dead_letters'
    """
    if not _TOPIC_NAME.match(name) or name in (".", ".."):
        raise ValueError(f"'{name}' is not a topic name: letters, digits, '.', '_' and '-' only")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise ValueError(f"a topic name has at most {TOPIC_NAME_LENGTH_MAX} characters")
    return name


def identifier(name: str) -> str:
    """Rule for names of pipelines, stages, tables and expectations: they become folders, views and headers."""
    if not _IDENTIFIER.match(name):
        raise ValueError(f"'{name}' is not a name: a letter or '_' first, then letters, digits, '_' and '-'")
    return name


class Model(BaseModel):
    """Base of every part: immutable, and unknown fields are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Topic(Model):
    """A declared topic: created at the start of a run when it does not exist (an existing one is left as it is)."""

    partitions: int = Field(default=1, ge=1, le=PARTITIONS_MAX)
    value: ValueFormat = "json"
    schema_file: str | None = Field(default=None, alias="schema", min_length=1)
    configs: dict[str, str | int | float | bool] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _schema_is_for_json(self) -> Topic:
        if self.schema_file is not None and self.value != "json":
            raise ValueError(f"schema is for value: json, and this topic's value is {self.value}")
        return self


class Table(Model):
    """A static table from files, read once per run."""

    format: Literal["csv", "json", "parquet"]
    path: str = Field(min_length=1)
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)


class Watermark(Model):
    """How late rows may be: event time column and delay. Needed by aggregations."""

    column: str = Field(min_length=1)
    delay: str

    @field_validator("delay")
    @classmethod
    def _delay_is_an_interval(cls, value: str) -> str:
        if not _INTERVAL.match(value):
            raise ValueError(f"'{value}' is not an interval such as '10 minutes', '6 hours', '2 days'")
        return value.strip()


class From(Model):
    """What a stage reads."""

    topic: str
    watermark: Watermark | None = None
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    max_offsets_per_trigger: int | None = Field(default=None, ge=1)

    _name = field_validator("topic")(topic_name)


class Expectation(Model):
    """A condition on the stage's rows, tried before they are written. A row meets it only if it is true (not null)."""

    name: str
    that: str = Field(min_length=1)
    otherwise: Otherwise = "dead_letter"

    _name = field_validator("name")(identifier)


class PythonTransform(Model):
    """A user function DataFrame -> DataFrame, loaded by file path."""

    file: str = Field(min_length=1)
    function: str

    @field_validator("function")
    @classmethod
    def _function_is_a_name(cls, value: str) -> str:
        if not value.isidentifier():
            raise ValueError(f"'{value}' is not the name of a Python function")
        return value


class TopicSink(Model):
    """Rows to a topic; at-least-once."""

    topic: str
    key: str | None = Field(default=None, min_length=1)
    value: str | None = Field(default=None, min_length=1)

    _name = field_validator("topic")(topic_name)


class DeltaSink(Model):
    """Rows to a Delta table; each micro-batch is written once."""

    delta: str = Field(min_length=1)
    partition_by: tuple[str, ...] = ()


def _sink_kind(value: Any) -> str | None:
    if isinstance(value, TopicSink | DeltaSink):
        return "topic" if isinstance(value, TopicSink) else "delta"
    if isinstance(value, dict) and ("topic" in value) != ("delta" in value):
        return "topic" if "topic" in value else "delta"
    return None


Sink = Annotated[
    Annotated[TopicSink, Tag("topic")] | Annotated[DeltaSink, Tag("delta")],
    Discriminator(
        _sink_kind,
        custom_error_type="sink_kind",
        custom_error_message="a sink names either a topic or a delta path",
    ),
]


class Stage(Model):
    """One streaming query: from a topic, through SQL or a Python function, to topics and tables."""

    name: str
    source: From = Field(alias="from")
    expect: tuple[Expectation, ...] = ()
    sql: str | None = Field(default=None, min_length=1)
    python: PythonTransform | None = None
    to: tuple[Sink, ...] = Field(min_length=1)

    _name = field_validator("name")(identifier)

    @model_validator(mode="after")
    def _one_transform(self) -> Stage:
        if self.sql is not None and self.python is not None:
            raise ValueError("a stage has either sql or python, not both: make two stages of it")
        return self


class Pipeline(Model):
    """The whole file."""

    pipeline: str
    variables: dict[str, str] = Field(default_factory=dict)
    topics: dict[str, Topic] = Field(default_factory=dict)
    tables: dict[str, Table] = Field(default_factory=dict)
    stages: tuple[Stage, ...] = Field(min_length=1, max_length=STAGES_MAX)

    _name = field_validator("pipeline")(identifier)

    @field_validator("variables", mode="before")
    @classmethod
    def _variables_are_text(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v
                for name, v in value.items()
            }
        return value

    @field_validator("topics")
    @classmethod
    def _topic_names(cls, value: dict[str, Topic]) -> dict[str, Topic]:
        for name in value:
            topic_name(name)
        return value

    @field_validator("tables")
    @classmethod
    def _table_names(cls, value: dict[str, Table]) -> dict[str, Table]:
        for name in value:
            identifier(name)
        return value

    def stage(self, name: str) -> Stage:
        """The stage of this name; KeyError if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pipeline together with where its parts stand, for messages that come later (from Spark, from the broker)."""

    pipeline: Pipeline
    document: Document
    folder: str
    warnings: tuple[Problem, ...] = field(default=())

    def path(self, relative: str) -> str:
        """A path of the file, seen from the file's own folder; absolute paths and URIs stay.

        >>> Loaded(None, None, "/etc/flows").path("schemas/a.json")
        '/etc/flows/schemas/a.json'
        >>> Loaded(None, None, "/etc/flows").path("hdfs://lake/a")
        'hdfs://lake/a'
        """
        if os.path.isabs(relative) or re.match(r"^[a-z][a-z0-9+.-]*://", relative):
            return relative
        return os.path.normpath(os.path.join(self.folder, relative))

    def problem(self, loc: Loc, message: str, hint: str = "") -> Problem:
        """A problem at a place of the file."""
        return self.document.problem(loc, message, hint)

    def stage_loc(self, stage: Stage, *more: str | int) -> Loc:
        """Path of a stage, or of something in it."""
        return ("stages", self.pipeline.stages.index(stage), *more)


def load(
    path: str, variables: Mapping[str, str] | None = None, existing_topics: frozenset[str] = frozenset()
) -> Loaded:
    """Read and check a file. Raises PipelineError with every problem; a file that cannot be read is one, too."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(2 * 1024 * 1024)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PipelineError([Problem(path, 0, 0, "", f"cannot read the pipeline: {why}")]) from None
    return parse(text, path, variables or {}, existing_topics, folder=os.path.dirname(os.path.abspath(path)))


def parse(
    text: str,
    file: str,
    variables: Mapping[str, str] | None = None,
    existing_topics: frozenset[str] = frozenset(),
    folder: str = "",
) -> Loaded:
    """Check a pipeline's text: YAML, variables, fields, then what the parts say about each other (`graph.check`).

    `variables` win over the file's own `variables:`. `existing_topics` are topics of the broker, which a stage may read
    without declaring them.
    """
    from pipelines import graph

    document = read(text, file)
    if not isinstance(document.values, dict):
        raise PipelineError([document.problem((), "a pipeline is a mapping", "start with `pipeline: NAME`")])
    own = document.values.get("variables") or {}
    known = {str(k): "" if v is None else str(v) for k, v in own.items()} if isinstance(own, dict) else {}
    given = dict(variables or {})
    used = substitute(document, known | given, skip=frozenset({"variables"}))
    problems = [
        Problem(
            file,
            0,
            0,
            f"--set {name}",
            f"the pipeline has no variable ${{{name}}}",
            nearest(name, sorted(used | set(known))),
        )
        for name in sorted(given)
        if name not in used and name not in known
    ]
    try:
        pipeline = Pipeline.model_validate(document.values)
    except ValidationError as error:
        raise PipelineError(problems + _told(error, document)) from None
    loaded = Loaded(pipeline, document, folder)
    found, warnings = graph.check(loaded, existing_topics)
    problems += found
    if problems:
        raise PipelineError(problems)
    return Loaded(pipeline, document, folder, tuple(warnings))


_MODELS_BY_FIELD: dict[str, type[Model]] = {
    "topics": Topic, "tables": Table, "stages": Stage, "from": From, "watermark": Watermark, "expect": Expectation,
    "python": PythonTransform,
}  # fmt: skip


def fields_of(model: type[Model]) -> list[str]:
    """Names of a part's fields as the file writes them."""
    return [info.alias or name for name, info in model.model_fields.items()]


def _model_at(loc: Loc, tags: tuple[str, ...]) -> type[Model]:
    if tags:
        return TopicSink if tags[-1] == "topic" else DeltaSink
    names = [part for part in loc if isinstance(part, str)]
    if len(names) >= 2 and names[0] in ("topics", "tables"):
        return _MODELS_BY_FIELD[names[0]]
    if names and names[-1] in _MODELS_BY_FIELD:
        return _MODELS_BY_FIELD[names[-1]]
    return Pipeline


def _told(error: ValidationError, document: Document) -> list[Problem]:
    """Pydantic's errors in the file's words and places."""
    problems: list[Problem] = []
    for item in error.errors(include_url=False):
        loc, tags = _without_tags(item["loc"])
        kind, context = item["type"], item.get("ctx", {})
        if kind == "too_short" and item.get("input"):
            continue  # it is not empty: its parts are wrong, and they have their own problems
        if kind == "extra_forbidden":
            known = fields_of(_model_at(loc[:-1], tags))
            problems.append(
                document.problem(loc, f"unknown field '{loc[-1]}'", nearest(str(loc[-1]), known), at_key=True)
            )
        elif kind == "missing":
            where = document.problem(loc[:-1], f"'{loc[-1]}' is missing", _MISSING.get(str(loc[-1]), "add it"))
            problems.append(Problem(where.file, where.line, where.column, _dotted(loc), where.message, where.hint))
        else:
            message, hint = _in_words(kind, item["msg"], context, item.get("input"))
            problems.append(document.problem(loc, message, hint))
    return problems


_MISSING = {
    "pipeline": "name the pipeline: `pipeline: NAME`",
    "stages": "a pipeline needs at least one stage",
    "to": "say where the stage's rows go: a topic or a delta path",
    "from": "say which topic the stage reads: `from: {topic: NAME}`",
    "name": "give it a name",
    "that": "give the condition, an SQL expression",
}


def _dotted(loc: Loc) -> str:
    from pipelines.yaml_source import field_name

    return field_name(loc)


def _without_tags(loc: tuple[int | str, ...]) -> tuple[Loc, tuple[str, ...]]:
    """Pydantic puts the union's tag after a sink's index; the file has no such level.

    >>> _without_tags(("stages", 0, "to", 1, "topic", "key"))
    (('stages', 0, 'to', 1, 'key'), ('topic',))
    """
    if len(loc) > 4 and loc[0] == "stages" and loc[2] == "to" and loc[4] in ("topic", "delta"):
        return (*loc[:4], *loc[5:]), (str(loc[4]),)
    return tuple(loc), ()


def _in_words(kind: str, message: str, context: Mapping[str, Any], given: Any) -> tuple[str, str]:
    told: dict[str, Callable[[], tuple[str, str]]] = {
        "literal_error": lambda: (
            f"{given!r} is not allowed",
            nearest(
                str(given), [v.strip("' ") for v in re.split(r",| or ", str(context["expected"])) if v.strip("' ")]
            ),
        ),
        "sink_kind": lambda: (message, "write {topic: NAME, key: COLUMN} or {delta: PATH}"),
        "too_short": lambda: ("it is empty", "give at least one"),
        "string_too_short": lambda: ("it is empty", "fill it in or leave it out"),
        "model_type": lambda: (f"expected a mapping of fields, not {_shown(given)}", ""),
        "dict_type": lambda: (f"expected a mapping, not {_shown(given)}", ""),
        "tuple_type": lambda: (f"expected a list, not {_shown(given)}", "write [ … ] or lines that begin with '-'"),
        "string_type": lambda: (
            f"expected text, not {_shown(given)}",
            "quote it" if isinstance(given, int | float) else "",
        ),
    }
    if kind in told:
        return told[kind]()
    text = message.removeprefix("Value error, ")
    return text[:1].lower() + text[1:] + ("" if kind == "value_error" else f", not {_shown(given)}"), ""


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)[:60]


VALUE_FORMATS: tuple[str, ...] = get_args(ValueFormat)
