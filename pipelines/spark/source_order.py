"""Rows that something has shuffled, back in the order in which their records stood at the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.pipelines import columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def by_source(rows: DataFrame, key: Column, place: Sequence[str]) -> DataFrame:
    """The rows of each key in one task, sorted by `place`, the columns that say where their records stand.

    `key` is binary; rows for which it is null are spread by their offset.
    """
    from pyspark.sql import functions as f

    spread = f.col(columns.OFFSET).cast("string").cast("binary")
    return rows.repartition(f.coalesce(key, spread)).sortWithinPartitions(*place)
