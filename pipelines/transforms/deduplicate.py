"""Drops duplicate rows within the watermark's delay."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.pipelines.definition import Deduplicate


def apply(rows: DataFrame, step: Deduplicate) -> DataFrame:
    """The first row of each value of `step.by`. In a batch frame, duplicates are dropped across all rows."""
    if not rows.isStreaming:
        return rows.dropDuplicates(list(step.by))
    if step.within is not None:
        rows = rows.withWatermark(step.column, step.within)
    return rows.dropDuplicatesWithinWatermark(list(step.by))
