"""What a source or a table of any kind does with Spark: the half that `headwater.pipelines.definition` cannot hold."""

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
    """What is wrong with an input, at one of its fields."""

    def __init__(self, field: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.hint = hint


@dataclass(frozen=True, slots=True)
class StageInput:
    """One input of a stage, where it is read: in which session, from which brokers, with what is known of columns."""

    session: SparkSession
    loaded: Loaded
    stage: Stage
    position: int
    known: KnownColumns
    servers: Brokers

    @property
    def schema(self) -> StructType:
        """The columns of an input that is no topic."""
        return self.known.inputs[self.stage.name, self.position]


class InputFeed(Protocol):
    """What brings an input's rows in the background of a continuous run."""

    def follow(self, on_failure: Callable[[BaseException], None]) -> None:
        """Begin; `on_failure` hears why it ended otherwise than by `close`."""

    def close(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True)
class Running:
    """What a stage's streams need beside. `make_table` makes a Delta table of this pipeline, unless it exists."""

    checkpoint: str
    make_table: Callable[[str, StructType], None]
    feeds: list[InputFeed] = field(default_factory=list)


class TopicOffsets(NamedTuple):
    """Records of a topic as `startingOffsets` and `endingOffsets` have them, and how many offsets there are at all."""

    start: str
    end: str
    there: int


@dataclass(frozen=True, slots=True)
class Sample:
    """How much a preview reads: so many rows; of a topic these records."""

    rows_max: int
    range_of: Callable[[TopicSource], TopicOffsets]


class SourceKind(Protocol[S_contra]):
    """A kind of source; `kinds` lists them."""

    def columns(
        self, session: SparkSession, loaded: Loaded, source: S_contra, known: KnownColumns, /
    ) -> StructType | None:
        """The columns of its rows; None for a topic, of which `known` has them.

        Raises InputMistake, SecretMissingError, or what Spark or the database says.
        """

    def empty(
        self, session: SparkSession, source: S_contra, known: KnownColumns, schema: StructType | None, /
    ) -> DataFrame:
        """No rows, as the stage's first step sees them; `schema` is what `columns` told."""

    def stream(self, at: StageInput, source: S_contra, running: Running, /) -> DataFrame:
        """Its rows as a streaming frame, with `columns.ERROR` if it may refuse some."""

    def read_again(self, at: StageInput, source: S_contra, plan: Any, /) -> DataFrame | None:
        """What it reads in the micro-batch whose plan (a JVM LogicalPlan) this is, as `stream` gives it.

        None for a batch in which it reads nothing, and where no row is ever refused.
        """

    def sample(self, at: StageInput, source: S_contra, wanted: Sample, /) -> tuple[DataFrame, int | None]:
        """Some rows, as `stream` gives them; and how many offsets a topic spans, None for what is no topic."""


class TableKind(Protocol[T_contra]):
    """A kind of table; `kinds` lists them."""

    def written_columns(
        self, session: SparkSession, loaded: Loaded, table: T_contra, known: KnownColumns, /
    ) -> StructType | None:
        """Columns of what stages write, or of a declared topic; None if they are not known."""

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
        """The table as it is now; without rows if a stage has not written it yet. `schema` are its columns if known.

        Raises SchemaError, SecretMissingError, or what Spark, the broker or the database says.
        """

    def look_again(self, frame: DataFrame, /) -> None:
        """Let a frame that `read` gave see what is there now, where Spark does not do so by itself."""

    def hint(self, loaded: Loaded, table: T_contra, /) -> str:
        """What to look at if it cannot be read."""


def no_rows(session: SparkSession, schema: StructType | None) -> DataFrame:
    """A frame of these columns."""
    assert schema is not None, "no topic: its columns are told by itself"
    return session.createDataFrame([], schema)
