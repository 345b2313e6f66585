"""Restores the source order of shuffled rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.pipelines import columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def by_source(rows: DataFrame, key: Column, place: Sequence[str]) -> DataFrame:
    """The rows with each key in one task, sorted by `place`, the columns of their records' position.

    `key` is binary; rows with a null key are distributed by their offset.
    """
    from pyspark.sql import functions as f

    spread = f.col(columns.OFFSET).cast("string").cast("binary")
    return rows.repartition(f.coalesce(key, spread)).sortWithinPartitions(*place)
