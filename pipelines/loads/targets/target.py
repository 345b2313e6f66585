"""What a target of loads is: what it has, and one way to add a load to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headwater.pipelines.loads.offsets.planning import TargetState
from headwater.pipelines.loads.targets.manifest import LoadPlan, Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Target", "Writing"]


@dataclass(frozen=True, slots=True)
class Writing:
    """One attempt at a load.

    Attributes:
        rows: The rows, with the partition columns last.
        partition_by: The partition columns.
        replaced: The manifest of the load that this one replaces.
        merge_schema: Whether new columns are added to the target's.
        late_before_ms: Rows with an earlier timestamp are counted as late; None counts none.
        before_commit: Called when every file is written; raises if the load must not be committed.
    """

    plan: LoadPlan
    rows: DataFrame
    partition_by: Sequence[str]
    replaced: Manifest | None
    merge_schema: bool
    before_commit: Callable[[], None]
    late_before_ms: int | None = None


class Target(Protocol):
    """A folder of files, or a Delta table. The caller holds the target's lock."""

    def refresh(self, spark: SparkSession) -> TargetState:
        """Settle what an earlier driver left, and return what the target has. Raises LoadError, FileSystemError."""

    def write(self, spark: SparkSession, writing: Writing) -> Manifest:
        """Write a load and commit it. Raises LoadError, LoadFailed, FileSystemError and Spark's errors."""
