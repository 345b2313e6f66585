"""Expectations on a stage's rows: a row meets an expectation only if its condition is true; null is not true.

A row that fails an expectation is not written, unless the expectation only warns: such rows are counted among the
written rows, by a mark (see `received_rows`).
"""

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
class WarnedRows:
    """Rows that are written although they fail an expectation: their number, and the first's partition and offset.

    `first` is None if the rows do not have them.
    """

    count: int
    first: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of a micro-batch's rows.

    Attributes:
        written: Rows that meet all expectations, except those that only warn.
        unmet: Rows by violated expectation, without those that only warn.
        received: Rows of `written` that each sink receives, in the order of the file.
        warned: Rows of `written` by violated expectation; a row may fail several.
    """

    written: int
    unmet: Mapping[str, int]
    received: tuple[int, ...]
    warned: Mapping[str, WarnedRows]

    @property
    def of_all(self) -> dict[str, int]:
        """Rows by violated expectation of any kind.

        >>> Counts(5, {"paid": 2}, (5,), {"cheap": WarnedRows(3, None)}).of_all
        {'paid': 2, 'cheap': 3}
        """
        found = dict(self.unmet)
        for name, rows in self.warned.items():
            found[name] = found.get(name, 0) + rows.count
        return found


def of_stage(stage: Stage, names: Collection[str]) -> tuple[Expectation, ...]:
    """The stage's expectations, and the expectation that rows have the sequence by which their sinks order changes.

    `names` are the rows' columns: the sink itself handles a sequence that only its table has.
    """
    found = dict.fromkeys(name for _, name in _sequences(stage, names))
    if not found:
        return stage.expect
    that = " AND ".join(f"`{name}` IS NOT NULL" for name in found)
    return (*stage.expect, Expectation(name=SEQUENCE_KNOWN, that=that))


def marked(rows: DataFrame, stage: Stage) -> DataFrame:
    """The rows with `columns.FAILED`, the name of the first expectation that a row fails, and with marks.

    Expectations come in the file's order; the sequence of changes is the last, and concerns the rows of its sinks. The
    marks are those of the sinks, and of expectations that only warn.
    """
    from pyspark.sql import functions as f

    failed = f.lit(None).cast("string")
    for expectation in reversed([each for each in stage.expect if each.otherwise != "warn"]):
        failed = f.when(~received_rows.is_true(expectation.that), f.lit(expectation.name)).otherwise(failed)
    found = received_rows.marked(rows.withColumn(columns.FAILED, failed), stage)
    for mark, expectation in warnings(stage).items():
        is_unmet = f.when(f.col(columns.FAILED).isNull(), ~received_rows.is_true(expectation.that))
        found = found.withColumn(mark, is_unmet.otherwise(f.lit(False)))
    without_sequence = _without_sequence(stage, rows.columns)
    if without_sequence:
        unordered = f.col(columns.FAILED).isNull() & functools.reduce(operator.or_, without_sequence)
        failed = f.when(unordered, f.lit(SEQUENCE_KNOWN)).otherwise(f.col(columns.FAILED))
        found = found.withColumn(columns.FAILED, failed)
    return found


def _without_sequence(stage: Stage, names: Collection[str]) -> list[Column]:
    """For each column of a sink's sequence that the rows have: whether the sink receives the row, which lacks it."""
    from pyspark.sql import functions as f

    return [
        received_rows.receives(position, stage.to[position]) & f.col(f"`{name}`").isNull()
        for position, name in _sequences(stage, names)
    ]


def _sequences(stage: Stage, names: Collection[str]) -> list[tuple[int, str]]:
    """The sequence columns among `names`, each with the position of its sink."""
    known = {name.lower() for name in names}
    return [
        (position, name)
        for position, sink in enumerate(stage.to)
        for name in sink.sequence_columns
        if name.lower() in known
    ]


def counts(rows: DataFrame, stage: Stage) -> Counts:
    """Count marked rows, in one pass."""
    from pyspark.sql import functions as f

    chosen = {f"sink_{position}": position for position, sink in enumerate(stage.to) if sink.when is not None}
    counted = [f.count_if(received_rows.receives(at, stage.to[at])).alias(name) for name, at in chosen.items()]
    marks = warnings(stage)
    for mark in marks:
        counted += [f.count_if(mark).alias(mark), _first(rows, mark).alias(f"{mark}_first")]
    groups = rows.groupBy(columns.FAILED).agg(f.count(f.lit(1)).alias("rows"), *counted).collect()
    found = {row[columns.FAILED]: row for row in groups}
    kept = found.pop(None, None)
    written = 0 if kept is None else kept["rows"]
    received = dict.fromkeys(range(len(stage.to)), written)
    warned = {}
    if kept is not None:
        received |= {position: kept[name] for name, position in chosen.items()}
        for mark, expectation in marks.items():
            first = kept[f"{mark}_first"]
            if kept[mark]:
                warned[expectation.name] = WarnedRows(kept[mark], None if first is None else tuple(first))
    return Counts(written, {name: row["rows"] for name, row in found.items()}, tuple(received.values()), warned)


def warnings(stage: Stage) -> dict[str, Expectation]:
    """The expectations that only warn, each by its mark: a column that is true for written rows that fail it."""
    return {
        f"{columns.MARK}warning_{position}": expectation
        for position, expectation in enumerate(stage.expect)
        if expectation.otherwise == "warn"
    }


def _first(rows: DataFrame, mark: str) -> Column:
    """Partition and offset of the first marked row; null if the rows do not have them."""
    from pyspark.sql import functions as f

    place = (columns.PARTITION, columns.OFFSET)
    if not all(name in rows.columns for name in place):
        return f.lit(None)
    is_known = f.col(columns.PARTITION).isNotNull() & f.col(columns.OFFSET).isNotNull()
    return f.min(f.when(f.col(mark) & is_known, f.struct(*place)))


def met(rows: DataFrame) -> DataFrame:
    """The marked rows that are written."""
    from pyspark.sql import functions as f

    return rows.where(f.col(columns.FAILED).isNull()).drop(columns.FAILED)


def unmet(rows: DataFrame, names: Collection[str]) -> DataFrame:
    """The rows that fail one of these expectations, with `columns.FAILED`, without marks."""
    from pyspark.sql import functions as f

    return received_rows.without_marks(rows.where(f.col(columns.FAILED).isin(*names)))
