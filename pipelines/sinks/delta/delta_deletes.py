"""The remembered deletes of a merged Delta table: a Delta table in its folder `_headwater_deletes`.

A deleted row leaves nothing in its table with which to compare a late change. So this table keeps the last delete of
each key (of each key and moment for a history), with its sequence and position.

A batch's deletes are written before its rows. After a crash between the two writes, the repeated batch completes them:
to write them again changes nothing. A delete remembered early hides only what its own batch hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headwater.pipelines.sinks.change_order import order
from headwater.pipelines.sinks.change_rule import POSITION
from headwater.pipelines.sinks.delta.merge_columns import WRITTEN_AT
from headwater.pipelines.sinks.stored_rows import DELETED, latest_of_each, same_key
from headwater.pipelines.spark.delta_folders import is_delta_table
from headwater.pipelines.spark.nullable import nullable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from headwater.pipelines.definition import Merge

__all__ = ["FOLDER", "not_hidden", "remember", "remembered"]

FOLDER: Final = "_headwater_deletes"


def place(merge: Merge) -> list[str]:
    """Columns that identify a delete: the key; in a history, also the moment."""
    return list(dict.fromkeys((*merge.keys, *(merge.sequence if merge.scd == 2 else ()))))


def remember(spark: SparkSession, changes: DataFrame, merge: Merge, path: str) -> None:
    """Store the deletes among a batch's changes."""
    from delta.tables import DeltaTable
    from pyspark.sql import functions as f

    if merge.delete_when is None or not merge.sequence:
        return
    last = latest_of_each(changes, place(merge), merge.sequence).where(f.col(DELETED) == 1)
    if last.isEmpty():
        return
    named = list(dict.fromkeys((*merge.keys, *merge.sequence)))
    found = last.select(
        *(f.col(f"`{name}`") for name in named if name not in POSITION),
        *(
            (f.col(name) if name in last.columns else f.lit(None)).cast(kind).alias(name)
            for name, kind in POSITION.items()
        ),
        f.current_timestamp().alias(WRITTEN_AT),
    )
    where = f"{path}/{FOLDER}"
    if not is_delta_table(spark, where):
        DeltaTable.createIfNotExists(spark).location(where).addColumns(nullable(found.schema)).execute()
    positions = list(POSITION)
    is_later = order(merge.sequence, positions, "s") >= order(merge.sequence, positions, "t")
    (
        DeltaTable.forPath(spark, where)
        .alias("t")
        .merge(found.alias("s"), same_key(place(merge), "t", "s"))
        .whenMatchedUpdate(is_later, _values(found.columns))
        .whenNotMatchedInsert(values=_values(found.columns))
        .execute()
    )


def _values(names: Sequence[str]) -> dict[str, str | Column]:
    from pyspark.sql import functions as f

    return {f"`{name}`": f.col(f"s.`{name}`") for name in names}


def remembered(spark: SparkSession, merge: Merge, path: str) -> DataFrame | None:
    """The remembered deletes of a table; None without any. Raises ValueError if they lack columns of `merge`."""
    where = f"{path}/{FOLDER}"
    if not merge.sequence or not is_delta_table(spark, where):
        return None
    found = spark.read.format("delta").load(where)
    missing = [name for name in (*merge.keys, *merge.sequence) if name not in found.columns]
    if missing:
        raise ValueError(
            f"{where} remembers the table's deletes without the column {', '.join(missing)} of merge: "
            "keep to the keys and the sequence that the table was written with, or write to another table"
        )
    return found.drop(WRITTEN_AT)


def not_hidden(deletes: DataFrame, rows: DataFrame, merge: Merge, positions: Sequence[str]) -> DataFrame:
    """The rows without a later delete of their key."""
    hides = order(merge.sequence, positions, "d") > order(merge.sequence, positions, "s")
    on = same_key(merge.keys, "d", "s") & hides
    return rows.alias("s").join(deletes.alias("d"), on, "left_anti")
