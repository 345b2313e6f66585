"""Counts a load's rows, those refused and those late, while they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headwater.pipelines import columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RowCounts", "counted"]


class RowCounts(NamedTuple):
    """Rows; those that could not be decoded; those with a timestamp before an interval's start."""

    rows: int
    refused: int
    late: int


def counted(rows: DataFrame, late_before_ms: int | None = None) -> tuple[DataFrame, Callable[[], RowCounts]]:
    """The rows, and a function that returns their counts, once they are written."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    refused = f.count(f.col(columns.ERROR) if columns.ERROR in rows.columns else f.lit(None))
    timestamp = columns.TIMESTAMP if columns.TIMESTAMP in rows.columns else "timestamp"
    is_late = f.lit(False) if late_before_ms is None else f.col(timestamp) < f.timestamp_millis(f.lit(late_before_ms))
    late = f.count(f.when(is_late, f.lit(1)))
    observed = rows.observe(seen, f.count(f.lit(1)).alias("rows"), refused.alias("refused"), late.alias("late"))

    def counts() -> RowCounts:
        found = seen.get
        return RowCounts(int(found["rows"]), int(found["refused"]), int(found["late"]))

    return observed, counts
