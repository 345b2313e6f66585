"""The Spark half of a kind of sink; `headwater.pipelines.definition` has the pure half."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import Loaded, Stage
    from headwater.pipelines.definition.sinks import SinkModel
    from headwater.pipelines.formats.topic_encoding import Encoding

    # Encodings by topic name.
    Encodings: TypeAlias = Mapping[str, Encoding]

S_contra = TypeVar("S_contra", bound="SinkModel", contravariant=True)

BatchWrite: TypeAlias = "Callable[[DataFrame, str, int], None]"
"""Writes the rows of one micro-batch once: rows, the checkpoint's app_id, the batch's number.

Raises PipelineFailed, or what Spark, the file system or the database says."""


class SinkKind(Protocol[S_contra]):
    """A kind of sink; `kinds` lists them."""

    def check(self, loaded: Loaded, sink: S_contra, rows: DataFrame, encodings: Encodings, /) -> None:
        """Check, with empty rows, that the sink can write them. Raises ValueError, UserCodeError or Spark's errors."""

    def shown(self, sink: S_contra, rows: DataFrame, encodings: Encodings, /) -> DataFrame:
        """The rows as the sink would store them, in readable form: records as text, tables with their columns."""

    def stored(self, sink: S_contra, rows: DataFrame, /) -> StructType | None:
        """Columns that a stage reading the sink's output gets; None if only the target determines them."""

    def writer(self, loaded: Loaded, stage: Stage, sink: S_contra, /) -> BatchWrite | None:
        """The function that writes a stage's micro-batches; None for topics: `batch_writing` writes them in a
        transaction.

        Raises PipelineFailed if the user's code cannot be loaded, which the analysis has already tried.
        """
