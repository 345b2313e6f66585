"""Expectations on a stage's rows: a row meets one only if its condition is true; null is not true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines import columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.spec import Expectation


def marked(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows with `columns.FAILED`: the name of the first expectation, in the file's order, that a row fails."""
    from pyspark.sql import functions as f

    failed = f.lit(None).cast("string")
    for expectation in reversed(expectations):
        met = f.coalesce(f.expr(expectation.that).cast("boolean"), f.lit(False))
        failed = f.when(~met, f.lit(expectation.name)).otherwise(failed)
    return rows.withColumn(columns.FAILED, failed)


def counts(rows: DataFrame) -> dict[str, int]:
    """Rows by the expectation they fail; '' counts those that meet all."""
    return {row[0] or "": row[1] for row in rows.groupBy(columns.FAILED).count().collect()}
