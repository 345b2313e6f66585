"""A stage's rows as sinks other than topics store them: their columns, and one row per key if keys are declared."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from headwater.pipelines import columns
from headwater.pipelines.definition.sinks.partition_columns import partition_column
from headwater.pipelines.definition.sinks.underscore_columns import UnderscoreColumns, left_out
from headwater.pipelines.sinks.change_order import known_positions, order

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELETED: Final = "headwater_deleted"  # 1 for rows that delete their key's row, else 0


def with_lineage(rows: DataFrame, *more: str) -> DataFrame:
    """The rows without the columns for a stage's internal use; `columns.KEPT` and `more` remain."""
    kept = (*columns.KEPT, *more)
    return rows.drop(*(name for name in columns.RESERVED if name in rows.columns and name not in kept))


def without_origin(rows: DataFrame, but_for: Collection[str] = ()) -> DataFrame:
    """The rows without the columns of their origin."""
    kept = {name.lower() for name in but_for}
    return rows.drop(*(name for name in columns.RESERVED if name in rows.columns and name not in kept))


def without_underscored(rows: DataFrame, option: UnderscoreColumns, named: Sequence[str]) -> DataFrame:
    """The rows without the columns that a sink's `underscore_columns` leaves out; `named` remain.

    Raises ValueError if no column remains.
    """
    omitted = left_out(option, rows.columns, named)
    if omitted and not set(rows.columns) - {*omitted, DELETED}:
        raise ValueError("underscore_columns: omit leaves out every column of the rows")
    return rows.drop(*omitted)


def with_partitions(rows: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """The rows with missing partition columns added."""
    from pyspark.sql import functions as f

    for expression in partition_by:
        name, value = partition_column(expression)
        if name not in rows.columns:
            rows = rows.withColumn(name, f.expr(value))
    return rows


def with_deleted(rows: DataFrame, delete_when: str | None) -> DataFrame:
    """The rows with the column DELETED; a null condition counts as false."""
    from pyspark.sql import functions as f

    deletes = f.lit(False) if delete_when is None else f.coalesce(f.expr(delete_when).cast("boolean"), f.lit(False))
    return rows.withColumn(DELETED, deletes.cast("int"))


def same_key(keys: Sequence[str], left: str, right: str) -> Column:
    """Whether two rows have the same key; null equals null."""
    from pyspark.sql import functions as f

    found = f.lit(True)
    for key in keys:
        found = found & f.col(f"{left}.`{key}`").eqNullSafe(f.col(f"{right}.`{key}`"))
    return found


def latest_of_each(rows: DataFrame, keys: Sequence[str], sequence: Sequence[str]) -> DataFrame:
    """One row for each value of `keys`: the last by `sequence` and position (`change_rule`); any row without both.

    Without a sequence the order of arrival decides, which is the order of offsets. Among rows that compare equal, a
    delete is the last.
    """
    from pyspark.sql import functions as f

    positions = known_positions(rows.columns)
    if not sequence:
        positions = [name for name in positions if name != columns.SOURCE_POSITION]
    is_ordered = bool(sequence or positions)
    last_by = order(sequence, positions)
    if DELETED in rows.columns:
        last_by = f.struct(last_by.alias("order"), f.col(DELETED))
    whole = f.struct(*(f.col(f"`{name}`") for name in rows.columns))
    chosen: Column = f.max_by(whole, last_by) if is_ordered else f.first(whole)
    grouped = rows.groupBy(*(f.col(f"`{name}`").alias(f"_key_{n}") for n, name in enumerate(keys)))
    found = grouped.agg(chosen.alias("_row"))
    return found.select(*(f.col("_row")[name].alias(name) for name in rows.columns))
