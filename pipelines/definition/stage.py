"""`stages:`: a stage is one streaming query, from its inputs through its steps to its sinks. Pure."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from headwater.pipelines.definition.model import Expression, Interval, Model, Name, OneOrMany, Shown
from headwater.pipelines.definition.sinks import Sink, TopicSink
from headwater.pipelines.definition.sources import Source, TopicSource
from headwater.pipelines.definition.steps import (
    DeduplicateStep,
    PythonFunction,
    PythonStep,
    SqlStep,
    Step,
    WatermarkStep,
)

INPUTS_MAX = 10  # streams of one query: Spark's state of a join grows with each
STEPS_MAX = 50
RESTARTS_MAX = 10_000

#: Name of the expectation that stages have whose sinks go by a sequence: a row without one is a dead letter.
SEQUENCE_KNOWN = "sequence_is_not_null"

Otherwise: TypeAlias = Literal["drop", "fail", "dead_letter", "warn"]


class Expectation(Model):
    """A condition on rows, checked before they are written. Null does not meet it."""

    name: Name = Field(description="name of the expectation in counts and dead letters")
    that: Expression = Field(description="condition; a row meets it if the result is true (null is not true)")
    otherwise: Otherwise = Field(
        default="dead_letter",
        description="action for rows that do not meet the condition: drop the row, fail the stage before the "
        "micro-batch is written, write the record as a dead letter, or write the row and log a warning",
    )


class Restart(Model):
    """Restarts of a stage after transient failures, such as an unreachable broker."""

    attempts: int = Field(
        default=20,
        ge=0,
        le=RESTARTS_MAX,
        description="maximum number of restarts during `within`; then the stage fails",
    )
    within: Interval = Field(default="1 hour", description="period in which restarts are counted")
    backoff: Interval = Field(
        default="1 second",
        description="pause before the first restart. Each further restart doubles it, up to one minute",
    )


class Stage(Model):
    """One streaming query: from its inputs, through its steps, to topics, tables and files."""

    name: Name = Field(
        description="stage name, also the name of its checkpoint: a stage with other inputs needs another name"
    )
    inputs: Annotated[tuple[Source, ...], OneOrMany(), Shown("source, or list of sources")] = Field(
        alias="from", min_length=1, max_length=INPUTS_MAX, description="inputs of the stage"
    )
    sql: Annotated[str | None, Shown("text")] = Field(
        default=None,
        min_length=1,
        description="Spark SQL. Each input and each table is a view (a name with dots needs backquotes)",
    )
    python: Annotated[PythonFunction | None, Shown("function")] = Field(
        default=None, description="function instead of SQL. Without either, rows are not changed"
    )
    steps: Annotated[tuple[Step, ...], Shown("list of steps")] = Field(
        default=(), max_length=STEPS_MAX, description="sequence of transformations, instead of `sql` or `python`"
    )
    expect: Annotated[tuple[Expectation, ...], Shown("list of expectations")] = Field(
        default=(), description="conditions that rows must meet before they are written"
    )
    mode: Literal["append", "update", "complete"] = Field(
        default="append",
        description="output mode of an aggregation: final groups, changed groups, or all groups every time "
        "(tables are replaced)",
    )
    trigger: Annotated[Interval | None, Shown("interval", "at once")] = Field(
        default=None, description="interval between micro-batches of a continuous run"
    )
    restart: Annotated[Restart | None, Shown("[restart](#restart)", "20 times within an hour")] = Field(
        default=None,
        description="restarts after a transient failure; default without `--continuous`: 5 times",
    )
    to: Annotated[tuple[Sink, ...], OneOrMany(), Shown("sink, or list of sinks")] = Field(
        min_length=1, description="outputs of the stage"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Stage:
        given = [name for name in ("sql", "python", "steps") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(
                f"a stage has either {given[0]} or {given[1]}, not both: write them under steps, or make two stages"
            )
        if len(self.inputs) > 1 and not given:
            raise ValueError("a stage with several inputs says by sql or python how they become one")
        return self

    @property
    def transforms(self) -> tuple[Step, ...]:
        """The steps in order: `steps`, or the single step of `sql` or `python`."""
        if self.sql is not None:
            return (SqlStep(sql=self.sql),)
        if self.python is not None:
            return (PythonStep(python=self.python),)
        return self.steps

    @property
    def stream_steps(self) -> int:
        """Number of `transforms` that run on the stream; later ones run on each micro-batch."""
        return next((n for n, step in enumerate(self.transforms) if step.is_of_batch), len(self.transforms))

    @property
    def topic_inputs(self) -> tuple[TopicSource, ...]:
        """The inputs that are topics."""
        return tuple(source for source in self.inputs if isinstance(source, TopicSource))

    @property
    def topic_sinks(self) -> tuple[TopicSink, ...]:
        """The sinks that are topics."""
        return tuple(sink for sink in self.to if isinstance(sink, TopicSink))

    @property
    def has_watermark(self) -> bool:
        """Whether any input or step has a watermark, so that rows may be late."""
        return any(source.watermark for source in self.inputs) or any(
            isinstance(step, WatermarkStep) or (isinstance(step, DeduplicateStep) and bool(step.deduplicate.within))
            for step in self.steps
        )
