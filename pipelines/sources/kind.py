"""The Spark half of a kind of source or table; `headwater.pipelines.definition` has the pure half."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from headwater.pipelines.datasource.brokers import Brokers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import Loaded, Stage, TopicSource
    from headwater.pipelines.definition.sources import Input
    from headwater.pipelines.definition.tables import TableModel
    from headwater.pipelines.sources.known_columns import KnownColumns

S_contra = TypeVar("S_contra", bound="Input", contravariant=True)
T_contra = TypeVar("T_contra", bound="TableModel", contravariant=True)


class InputMistake(Exception):  # noqa: N818 - as Mistake is
    """A problem of an input, at one of its fields."""

    def __init__(self, field: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.hint = hint


@dataclass(frozen=True, slots=True)
class StageInput:
    """One input of a stage, with its session, brokers and known columns."""

    session: SparkSession
    loaded: Loaded
    stage: Stage
    position: int
    known: KnownColumns
    servers: Brokers

    @property
    def schema(self) -> StructType:
        """The columns of an input other than a topic."""
        return self.known.inputs[self.stage.name, self.position]


class InputFeed(Protocol):
    """A background fetch of an input's rows during a continuous run."""

    def follow(self, on_failure: Callable[[BaseException], None]) -> None:
        """Begin fetching; an error ends the fetching and is passed to `on_failure`."""

    def close(self) -> None:
        """End the fetching."""


@dataclass(frozen=True, slots=True)
class Running:
    """Further dependencies of a stage's streams. `make_table` creates a Delta table of this pipeline if missing."""

    checkpoint: str
    make_table: Callable[[str, StructType], None]
    feeds: list[InputFeed] = field(default_factory=list)


class TopicOffsets(NamedTuple):
    """A range of a topic's records as `startingOffsets` and `endingOffsets`, and the topic's number of offsets."""

    start: str
    end: str
    there: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The amount that a preview reads: a number of rows; for a topic a range of records."""

    rows_max: int
    range_of: Callable[[TopicSource], TopicOffsets]


class SourceKind(Protocol[S_contra]):
    """A kind of source; `kinds` lists them."""

    def columns(
        self, session: SparkSession, loaded: Loaded, source: S_contra, known: KnownColumns, /
    ) -> StructType | None:
        """The columns of the source's rows; None for a topic, whose columns are in `known`.

        Raises InputMistake, SecretMissingError, or the errors of Spark or of the database.
        """

    def empty(
        self, session: SparkSession, source: S_contra, known: KnownColumns, schema: StructType | None, /
    ) -> DataFrame:
        """An empty frame as the stage's first step sees it; `schema` is the result of `columns`."""

    def stream(self, at: StageInput, source: S_contra, running: Running, /) -> DataFrame:
        """The source's rows as a streaming frame, with `columns.ERROR` if the source may refuse rows."""

    def read_again(self, at: StageInput, source: S_contra, plan: Any, /) -> DataFrame | None:
        """The source's rows in the micro-batch with this plan (a JVM LogicalPlan), in the form of `stream`.

        None for a batch without rows of the source, and for sources that never refuse rows.
        """

    def sample(self, at: StageInput, source: S_contra, wanted: Sample, /) -> tuple[DataFrame, int | None]:
        """Some rows in the form of `stream`, and a topic's number of offsets, None for other sources."""


class TableKind(Protocol[T_contra]):
    """A kind of table; `kinds` lists them."""

    def written_columns(
        self, session: SparkSession, loaded: Loaded, table: T_contra, known: KnownColumns, /
    ) -> StructType | None:
        """Columns from the writing stages, or from a declared topic; None if unknown."""

    def read(
        self,
        session: SparkSession,
        loaded: Loaded,
        table: T_contra,
        schema: StructType | None,
        known: KnownColumns,
        servers: Brokers,
        /,
    ) -> DataFrame:
        """The current table; an empty frame if its stage has not written it yet. `schema` are its columns if known.

        Raises SchemaError, SecretMissingError, or the errors of Spark, the broker or the database.
        """

    def look_again(self, frame: DataFrame, /) -> None:
        """Refresh a frame from `read` to the current content, where Spark does not do so itself."""

    def hint(self, loaded: Loaded, table: T_contra, /) -> str:
        """A hint for a table that cannot be read."""


def no_rows(session: SparkSession, schema: StructType | None) -> DataFrame:
    """An empty frame of these columns."""
    assert schema is not None, "no topic: its columns are told by itself"
    return session.createDataFrame([], schema)
