"""Expectations on a stage's rows: a row meets an expectation only if its condition is true; null is not true."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.definition import Expectation, Stage
from headwater.pipelines.definition.stage import SEQUENCE_KNOWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def of_stage(stage: Stage, names: Collection[str]) -> tuple[Expectation, ...]:
    """The stage's expectations, and the expectation that rows have the sequence by which its sinks order changes.

    `names` are the rows' columns: the sink itself handles a sequence that only its table has.
    """
    wanted = [name for sink in stage.to for name in sink.sequence_columns]
    known = {name.lower() for name in names}
    found = dict.fromkeys(name for name in wanted if name.lower() in known)
    if not found:
        return stage.expect
    that = " AND ".join(f"`{name}` IS NOT NULL" for name in found)
    return (*stage.expect, Expectation(name=SEQUENCE_KNOWN, that=that))


def marked(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows with `columns.FAILED`: the name of the first expectation, in the file's order, that a row fails."""
    from pyspark.sql import functions as f

    failed = f.lit(None).cast("string")
    for expectation in reversed(expectations):
        met = f.coalesce(f.expr(expectation.that).cast("boolean"), f.lit(False))
        failed = f.when(~met, f.lit(expectation.name)).otherwise(failed)
    return rows.withColumn(columns.FAILED, failed)


def counts(rows: DataFrame) -> dict[str, int]:
    """Number of rows by violated expectation; '' counts rows that meet all."""
    return {row[0] or "": row[1] for row in rows.groupBy(columns.FAILED).count().collect()}
