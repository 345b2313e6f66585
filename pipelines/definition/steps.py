"""`sql:`, `python:`, `steps:`: the steps of a stage. Pure."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from headwater.pipelines.definition.model import Columns, FunctionName, Interval, Model, Path, Scalar, Shown, kind_of
from headwater.pipelines.definition.sources import Watermark


class PythonFunction(Model):
    """A user-defined function, loaded from a file."""

    file: Path = Field(description="Python file. It need not be on the module path; executors receive its code")
    function: FunctionName = Field(description="function name")


class BaseStep(Model):
    """Base of all steps."""

    @property
    def may_read_tables(self) -> bool:
        """Whether the step may read tables of the pipeline that the file does not name."""
        return False

    @property
    def is_of_batch(self) -> bool:
        """Whether the step runs on the rows of each micro-batch instead of the stream."""
        return False


class BatchStep(BaseStep):
    """A step that may run on each micro-batch instead of on the stream."""

    each_batch: bool = Field(
        default=False,
        description="run on each micro-batch as a table, after all stateful operations. Allows what Spark does "
        "not support on streams, such as ranking. Later steps also run on the micro-batch",
    )

    @property
    def is_of_batch(self) -> bool:
        """The value of `each_batch`."""
        return self.each_batch


class SqlStep(BatchStep):
    """Spark SQL over the stage's inputs, or the rows of the step before, and the tables."""

    sql: Annotated[str, Shown("text")] = Field(min_length=1, description="Spark SQL")


class PythonStep(BatchStep):
    """A function from DataFrame to DataFrame."""

    python: Annotated[PythonFunction, Shown("function")] = Field(description="function to call")

    @property
    def may_read_tables(self) -> bool:
        """Whether the function may read tables: always, through its session."""
        return True


class WatermarkStep(BaseStep):
    """A watermark on a column of a previous step."""

    watermark: Annotated[Watermark, Shown("watermark")] = Field(description="column and delay")


class Deduplicate(Model):
    """Columns that identify duplicates, and how long rows are remembered."""

    by: Columns = Field(description="columns that identify duplicates")
    within: Annotated[Interval | None, Shown("interval", "the watermark's delay")] = Field(
        default=None,
        description="how long a row is remembered, in event time. Required if the rows have no watermark",
    )
    column: Annotated[str, Shown("column")] = Field(
        default="_timestamp", min_length=1, description="event time column for `within`"
    )


class DeduplicateStep(BaseStep):
    """Keeps the first row of each group of duplicates."""

    deduplicate: Annotated[Deduplicate, Shown("deduplication")] = Field(
        description="columns to compare, and how long rows are remembered"
    )


class Stateful(Model):
    """A user-defined StatefulProcessor (Spark's transformWithState)."""

    file: Path = Field(description="Python file with the class")
    processor: FunctionName = Field(description="class name; a subclass of `pyspark.sql.streaming.StatefulProcessor`")
    by: Columns = Field(description="columns by which rows are grouped; each group has its own state")
    output: Annotated[str, Shown("columns")] = Field(
        min_length=1, description="output columns in SQL: `user STRING, visits BIGINT`"
    )
    form: Literal["row", "pandas"] = Field(
        default="row", description="input and output as rows or as pandas data frames"
    )
    time: Literal["none", "processing_time", "event_time"] = Field(
        default="none", description="time mode of timers and of the state's time to live"
    )
    options: dict[str, Scalar] = Field(default_factory=dict, description="keyword arguments of the constructor")


class StatefulStep(BaseStep):
    """User-defined state by key."""

    stateful: Annotated[Stateful, Shown("processor")] = Field(description="class and output columns")


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
