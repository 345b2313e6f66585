"""The rows of a table by key: of each key the last record, unless that is a tombstone.

Two records are versions of one row if partition and key are the same, as in a compacted log: a partition is compacted
for itself, and a key that has moved to another partition, after partitions were added, has a record in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.pipelines import columns
from headwater.pipelines.archive.rows import is_raw

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["KEY", "KeyCounts", "is_tombstone", "key_counts", "last_of_keys", "with_keys", "without_keys"]

KEY: Final = (columns.PARTITION, columns.KEY)


def is_tombstone(known: KnownColumns, topic: str, *, keeps_value: bool) -> Column:
    """Whether a row, as `rows.rows_of` makes it, is that of a record without a value."""
    from pyspark.sql import functions as f

    if is_raw(known, topic):
        return f.col("value").isNull()
    is_null = f.col(columns.VALUE).isNull()  # that of a refused record, if not of every one
    if keeps_value:
        return is_null
    if known.value_format(topic) == "string":
        return is_null & f.col("value").isNull()
    return is_null & f.col(columns.ERROR).isNotNull()


def last_of_keys(rows: DataFrame) -> DataFrame:
    """The last row of each `KEY`, by its offset; those of tombstones as well."""
    from pyspark.sql import functions as f

    return rows.groupBy(*KEY).agg(f.max_by(f.struct("*"), columns.OFFSET).alias("_last")).select("_last.*")


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """Of the last records of keys: rows that they make, those with an error, and a record without a key, if any."""

    rows: int = 0
    errors: int = 0
    keyless: tuple[int, int] | None = None


def key_counts(last: DataFrame, is_deleted: Column) -> KeyCounts:
    """Count the last rows of keys (`last_of_keys`). `is_deleted`: see `is_tombstone`."""
    from pyspark.sql import functions as f

    error = f.col(columns.ERROR).isNotNull() if columns.ERROR in last.columns else f.lit(False)
    place = f.struct(columns.PARTITION, columns.OFFSET)
    [row] = last.select(
        f.count(f.when(~is_deleted, 1)),
        f.count(f.when(~is_deleted & error, 1)),
        f.min(f.when(f.col(columns.KEY).isNull(), place)),
    ).collect()
    return KeyCounts(row[0], row[1], None if row[2] is None else (row[2][0], row[2][1]))


def with_keys(rows: DataFrame, changed: DataFrame) -> DataFrame:
    """The rows whose `KEY` is among those of `changed`."""
    return _joined(rows, changed, "left_semi")


def without_keys(rows: DataFrame, changed: DataFrame) -> DataFrame:
    """The rows whose `KEY` is not among those of `changed`."""
    return _joined(rows, changed, "left_anti")


def _joined(rows: DataFrame, changed: DataFrame, how: str) -> DataFrame:
    from pyspark.sql import functions as f

    keys = changed.select(*(f.col(name).alias(f"_changed{name}") for name in KEY)).distinct()
    same = [f.col(name).eqNullSafe(f.col(f"_changed{name}")) for name in KEY]
    return rows.join(keys, same, how)
