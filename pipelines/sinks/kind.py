"""What a sink of any kind does with Spark: the half of its kind that `headwater.pipelines.definition` cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import Loaded, Stage
    from headwater.pipelines.definition.sinks import SinkModel
    from headwater.pipelines.formats.topic_encoding import Encoding

    # How topics are written, by their names.
    Encodings: TypeAlias = Mapping[str, Encoding]

S_contra = TypeVar("S_contra", bound="SinkModel", contravariant=True)

BatchWrite: TypeAlias = "Callable[[DataFrame, str, int], None]"
"""Writes the rows of one micro-batch once: rows, the checkpoint's app_id, the batch's number.

Raises PipelineFailed, or what Spark, the file system or the database says."""


class SinkKind(Protocol[S_contra]):
    """A kind of sink; `kinds` lists them."""

    def check(self, loaded: Loaded, sink: S_contra, rows: DataFrame, encodings: Encodings, /) -> None:
        """Look at empty rows. Raises ValueError, UserCodeError, or what Spark says, if it cannot write such."""

    def shown(self, sink: S_contra, rows: DataFrame, encodings: Encodings, /) -> DataFrame:
        """The rows as it would hold them, for people: records as text, tables with their columns."""

    def stored(self, sink: S_contra, rows: DataFrame, /) -> StructType | None:
        """Columns that a stage which reads what it writes finds there; None if only its target can tell."""

    def writer(self, loaded: Loaded, stage: Stage, sink: S_contra, /) -> BatchWrite | None:
        """What writes a stage's micro-batches; None for a topic, which `batch_writing` writes in its transaction.

        Raises PipelineFailed if the user's code cannot be loaded, which analysis has tried before.
        """
