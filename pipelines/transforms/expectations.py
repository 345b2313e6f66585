"""Expectations on a stage's rows: a row meets an expectation only if its condition is true; null is not true."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.definition import Expectation, Stage
from headwater.pipelines.definition.stage import SEQUENCE_KNOWN
from headwater.pipelines.transforms import received_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of a micro-batch's rows.

    Attributes:
        written: Rows that meet all expectations.
        unmet: Rows by violated expectation.
        received: Rows of `written` that each sink receives, in the order of the file.
    """

    written: int
    unmet: Mapping[str, int]
    received: tuple[int, ...]


def of_stage(stage: Stage, names: Collection[str]) -> tuple[Expectation, ...]:
    """The stage's expectations, and the expectation that rows have the sequence by which their sinks order changes.

    `names` are the rows' columns: the sink itself handles a sequence that only its table has.
    """
    wanted = [name for sink in stage.to for name in sink.sequence_columns]
    known = {name.lower() for name in names}
    found = dict.fromkeys(name for name in wanted if name.lower() in known)
    if not found:
        return stage.expect
    that = " AND ".join(f"`{name}` IS NOT NULL" for name in found)
    return (*stage.expect, Expectation(name=SEQUENCE_KNOWN, that=that))


def marked(rows: DataFrame, stage: Stage) -> DataFrame:
    """The rows with `columns.FAILED`, the name of the first expectation that a row fails, and the marks of the sinks.

    Expectations come in the file's order; the sequence of changes is the last, and concerns the rows of its sinks.
    """
    from pyspark.sql import functions as f

    failed = f.lit(None).cast("string")
    for expectation in reversed(stage.expect):
        failed = f.when(~received_rows.is_true(expectation.that), f.lit(expectation.name)).otherwise(failed)
    found = received_rows.marked(rows.withColumn(columns.FAILED, failed), stage)
    without_sequence = _without_sequence(stage, rows.columns)
    if without_sequence:
        unordered = f.col(columns.FAILED).isNull() & functools.reduce(operator.or_, without_sequence)
        failed = f.when(unordered, f.lit(SEQUENCE_KNOWN)).otherwise(f.col(columns.FAILED))
        found = found.withColumn(columns.FAILED, failed)
    return found


def _without_sequence(stage: Stage, names: Collection[str]) -> list[Column]:
    """For each column of a sink's sequence that the rows have: whether the sink receives the row, which lacks it."""
    from pyspark.sql import functions as f

    known = {name.lower() for name in names}
    return [
        received_rows.receives(position, sink) & f.col(f"`{name}`").isNull()
        for position, sink in enumerate(stage.to)
        for name in sink.sequence_columns
        if name.lower() in known
    ]


def counts(rows: DataFrame, stage: Stage) -> Counts:
    """Count marked rows, in one pass."""
    from pyspark.sql import functions as f

    chosen = [position for position, sink in enumerate(stage.to) if sink.when is not None]
    received = [f.count_if(received_rows.receives(position, stage.to[position])) for position in chosen]
    found = {row[0]: row for row in rows.groupBy(columns.FAILED).agg(f.count(f.lit(1)), *received).collect()}
    written, *numbers = found[None][1:] if None in found else [0] * (1 + len(chosen))
    of_sinks = dict(zip(chosen, numbers, strict=True))
    return Counts(
        written,
        {name: row[1] for name, row in found.items() if name is not None},
        tuple(of_sinks.get(position, written) for position in range(len(stage.to))),
    )


def met(rows: DataFrame) -> DataFrame:
    """The marked rows that meet all expectations."""
    from pyspark.sql import functions as f

    return rows.where(f.col(columns.FAILED).isNull()).drop(columns.FAILED)


def unmet(rows: DataFrame, names: Collection[str]) -> DataFrame:
    """The rows that fail one of these expectations, with `columns.FAILED`, without marks."""
    from pyspark.sql import functions as f

    return received_rows.without_marks(rows.where(f.col(columns.FAILED).isin(*names)))
