"""`sql:`, `python:`, `steps:`: what a stage does with its rows. Pure."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from headwater.pipelines.definition.model import Columns, FunctionName, Interval, Model, Path, Scalar, Shown, kind_of
from headwater.pipelines.definition.sources import Watermark


class PythonFunction(Model):
    """A function of the user's, loaded by file path."""

    file: Path = Field(description="a Python file; it need not be on the module path, and executors get it by value")
    function: FunctionName = Field(description="name of the function")


class BaseStep(Model):
    """What all steps share."""

    @property
    def may_read_tables(self) -> bool:
        """Whether it may read the pipeline's tables in a way that the file does not show."""
        return False

    @property
    def is_of_batch(self) -> bool:
        """Whether it looks at the rows of one micro-batch rather than at a stream."""
        return False


class BatchStep(BaseStep):
    """A step that may run on each micro-batch instead of on the stream."""

    each_batch: bool = Field(
        default=False,
        description="run on the rows of each micro-batch as a table of their own, behind all state: what a stream "
        "cannot do, such as ranking, can be done there; the steps that follow run there, too",
    )

    @property
    def is_of_batch(self) -> bool:
        """What the file says."""
        return self.each_batch


class SqlStep(BatchStep):
    """Spark SQL over the stage's inputs, or the rows of the step before, and the tables."""

    sql: Annotated[str, Shown("text")] = Field(min_length=1, description="Spark SQL")


class PythonStep(BatchStep):
    """A function from DataFrame to DataFrame."""

    python: Annotated[PythonFunction, Shown("function")] = Field(description="a function")

    @property
    def may_read_tables(self) -> bool:
        """It may ask its session for any of them."""
        return True


class WatermarkStep(BaseStep):
    """A watermark on a column that a step before has made."""

    watermark: Annotated[Watermark, Shown("watermark")] = Field(description="column and delay")


class Deduplicate(Model):
    """Which rows are the same, and for how long that is remembered."""

    by: Columns = Field(description="columns that are equal in rows that are the same")
    within: Annotated[Interval | None, Shown("interval", "the watermark's delay")] = Field(
        default=None,
        description="how long a row is remembered, in event time; needed unless the rows have a watermark, whose delay "
        "it is otherwise",
    )
    column: Annotated[str, Shown("column")] = Field(
        default="_timestamp", min_length=1, description="the event time, for `within`"
    )


class DeduplicateStep(BaseStep):
    """Only the first of several rows that are the same."""

    deduplicate: Annotated[Deduplicate, Shown("deduplication")] = Field(description="by which columns, for how long")


class Stateful(Model):
    """A StatefulProcessor of the user's (Spark's transformWithState)."""

    file: Path = Field(description="a Python file with the class")
    processor: FunctionName = Field(description="name of the class, a `pyspark.sql.streaming.StatefulProcessor`")
    by: Columns = Field(description="columns whose values share a state")
    output: Annotated[str, Shown("columns")] = Field(
        min_length=1, description="columns of the rows it gives, as SQL has them: `user STRING, visits BIGINT`"
    )
    form: Literal["row", "pandas"] = Field(
        default="row", description="whether it takes and gives rows or pandas data frames"
    )
    time: Literal["none", "processing_time", "event_time"] = Field(
        default="none", description="what its timers and the time to live of its state go by"
    )
    options: dict[str, Scalar] = Field(default_factory=dict, description="keyword arguments of the class")


class StatefulStep(BaseStep):
    """State of the user's own, by key."""

    stateful: Annotated[Stateful, Shown("processor")] = Field(description="the class and what it gives")


Step: TypeAlias = Annotated[
    Annotated[SqlStep, Tag("sql")]
    | Annotated[PythonStep, Tag("python")]
    | Annotated[WatermarkStep, Tag("watermark")]
    | Annotated[DeduplicateStep, Tag("deduplicate")]
    | Annotated[StatefulStep, Tag("stateful")],
    Discriminator(
        kind_of("sql", "python", "watermark", "deduplicate", "stateful"),
        custom_error_type="kind",
        custom_error_message="a step names one of sql, python, watermark, deduplicate, stateful",
    ),
]
