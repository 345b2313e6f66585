"""Counts a load's rows, and those refused, while they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.pipelines import columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["counted"]


def counted(rows: DataFrame) -> tuple[DataFrame, Callable[[], tuple[int, int]]]:
    """The rows, and a function that returns their number and the number refused, once they are written."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    refused = f.count(f.col(columns.ERROR) if columns.ERROR in rows.columns else f.lit(None))
    observed = rows.observe(seen, f.count(f.lit(1)).alias("rows"), refused.alias("refused"))

    def counts() -> tuple[int, int]:
        found = seen.get
        return int(found["rows"]), int(found["refused"])

    return observed, counts
