"""Rows that were there before are left out, as long as the watermark remembers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.pipelines.definition import Deduplicate


def apply(rows: DataFrame, step: Deduplicate) -> DataFrame:
    """Only the first row of each value of `step.by`. A frame that is no stream is looked at as a whole."""
    if not rows.isStreaming:
        return rows.dropDuplicates(list(step.by))
    if step.within is not None:
        rows = rows.withWatermark(step.column, step.within)
    return rows.dropDuplicatesWithinWatermark(list(step.by))
