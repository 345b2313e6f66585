"""The rows that each sink of a stage receives: all rows that are written, or those for which its `when` is true.

A condition is computed once for each micro-batch, with the rows, as a mark: a boolean column of the cached rows, which
no sink gets. The number of a sink's rows is therefore the number of rows that it gets, even for conditions such as
`rand() < 0.1` or a comparison with `current_timestamp()`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.definition import PythonSink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headwater.pipelines.definition import Sink, Stage

__all__ = [
    "ReceivedRows",
    "handed_out",
    "is_true",
    "marked",
    "reads_record_values",
    "receives",
    "with_mark",
    "without_marks",
]


@dataclass(frozen=True, slots=True)
class ReceivedRows:
    """The rows that one sink receives of a micro-batch, and their number."""

    sink: Sink
    rows: DataFrame
    count: int


def is_true(condition: str) -> Column:
    """Whether a condition is true; false if it is null."""
    from pyspark.sql import functions as f

    return f.coalesce(f.expr(condition).cast("boolean"), f.lit(False))


def marked(rows: DataFrame, stage: Stage) -> DataFrame:
    """The rows, which have `columns.FAILED`, with a mark for each sink that has `when`.

    A condition is not evaluated for rows that fail an expectation: `amount <> 0` is a guard of `1 / amount > 2`.
    """
    for position, sink in enumerate(stage.to):
        if sink.when is not None:
            rows = with_mark(rows, position, sink.when)
    return rows


def with_mark(rows: DataFrame, position: int, when: str) -> DataFrame:
    """The rows with the mark of one sink, by its position in the file. Raises Spark's errors of the condition."""
    from pyspark.sql import functions as f

    received = is_true(when)
    if columns.FAILED in rows.columns:
        received = f.when(f.col(columns.FAILED).isNull(), received).otherwise(f.lit(False))
    return rows.withColumn(_mark(position), received)


def receives(position: int, sink: Sink) -> Column:
    """Whether a sink receives a marked row that is written."""
    from pyspark.sql import functions as f

    return f.lit(True) if sink.when is None else f.col(_mark(position))


def handed_out(met: DataFrame, stage: Stage, counts: Sequence[int]) -> tuple[ReceivedRows, ...]:
    """Each sink's share of the marked rows that are written, in the order of the file; `counts` are their numbers."""
    return tuple(
        ReceivedRows(sink, without_marks(met if sink.when is None else met.where(receives(position, sink))), count)
        for position, (sink, count) in enumerate(zip(stage.to, counts, strict=True))
    )


def reads_record_values(stage: Stage) -> bool:
    """Whether a sink may read `columns.VALUE`: an expression or a column that it names, or a user's function.

    >>> from headwater.pipelines.definition import Stage
    >>> def reads(sink):
    ...     return reads_record_values(Stage.model_validate({"name": "s", "from": {"topic": "t"}, "to": sink}))
    >>> reads({"topic": "out", "value": "upper(string(_VALUE))"}), reads({"topic": "out", "key": "id"})
    (True, False)
    >>> reads({"python": {"file": "f.py", "function": "send"}})
    True
    """
    if any(isinstance(sink, PythonSink) for sink in stage.to):
        return True
    texts = [text for sink in stage.to for _, text in sink.expressions()]
    texts += [name for sink in stage.to for _, names, _ in sink.columns_named() for name in names]
    return any(columns.VALUE in text.lower() for text in texts)


def without_marks(rows: DataFrame, but_for: Collection[str] = ()) -> DataFrame:
    """The rows without marks, except those in `but_for`."""
    marks = [name for name in rows.columns if name.startswith(columns.MARK) and name not in but_for]
    return rows.drop(*marks) if marks else rows


def _mark(position: int) -> str:
    return f"{columns.MARK}sink_{position}"
