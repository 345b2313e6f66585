"""Inserts changes into their keys' histories at any point in time (`change_rule.history`): SCD 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headwater.pipelines.sinks.change_order import known_positions, order
from headwater.pipelines.sinks.delta.merge_columns import CURRENT, VALID_FROM, VALID_TO
from headwater.pipelines.sinks.stored_rows import DELETED, latest_of_each, same_key

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame

    from headwater.pipelines.definition import Merge

__all__ = ["IS_NEW", "ends_of", "latest_first", "merge_states", "moments", "of_keys", "write"]

IS_NEW: Final = "_is_new"


def write(table: DeltaTable, changes: DataFrame, merge: Merge, deletes: DataFrame | None) -> None:
    """Merge changes into the table. `deletes` are the remembered deletes, including those of `changes`."""
    given = moments(changes, merge)
    rows = _timeline(table.toDF(), given, merge, deletes)
    merge_states(table, rows, merge)


def merge_states(table: DeltaTable, rows: DataFrame, merge: Merge) -> None:
    """Make the states that begin at the moments of `rows` those of `rows`, or none where DELETED is 1.

    A state with the values of another change (IS_NEW, or another moment of its sequence) is written whole, else only
    its end.
    """
    from pyspark.sql import functions as f

    data = [name for name in rows.columns if name not in (DELETED, IS_NEW)]
    values: dict[str, str | Column] = {f"`{name}`": f.col(f"s.`{name}`") for name in data}
    ends: dict[str, str | Column] = {VALID_TO: f.col(f"s.{VALID_TO}"), CURRENT: f.col(f"s.{CURRENT}")}
    is_deleted = f.col(f"s.{DELETED}") == 1
    moment = merge.sequence[0]
    is_other = ~f.col(f"s.`{moment}`").eqNullSafe(f.col(f"t.`{moment}`"))
    (
        table.alias("t")
        .merge(rows.alias("s"), same_key((*merge.keys, VALID_FROM), "t", "s"))
        .whenMatchedDelete(is_deleted)
        .whenMatchedUpdate((f.col(f"s.{IS_NEW}") == 1) | is_other, values)
        .whenMatchedUpdate(~f.col(f"s.{VALID_TO}").eqNullSafe(f.col(f"t.{VALID_TO}")), ends)
        .whenNotMatchedInsert(~is_deleted, values)
        .execute()
    )


def moments(changes: DataFrame, merge: Merge) -> DataFrame:
    """The latest change of each key and moment; the moment is in VALID_FROM."""
    from pyspark.sql import functions as f

    start = merge.sequence[0]
    known = changes.where(f.col(f"`{start}`").isNotNull())
    given = latest_of_each(known, tuple(dict.fromkeys((*merge.keys, start))), (start,))
    return given.withColumn(VALID_FROM, f.col(f"`{start}`"))


def _timeline(table: DataFrame, given: DataFrame, merge: Merge, deletes: DataFrame | None) -> DataFrame:
    """The complete histories of the changed keys: the table's states, deletes and changes, each with its successor."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    keys = [f.col(f"`{key}`") for key in merge.keys]
    names = given.select(*keys).distinct()
    states = of_keys(table, names, merge)
    by_start = Window.partitionBy(*keys).orderBy(VALID_FROM)
    points = states.drop(VALID_TO, CURRENT).withColumn(DELETED, f.lit(0))
    points = points.unionByName(ends_of(states, merge), allowMissingColumns=True)
    if deletes is not None:
        own = of_keys(deletes, names, merge).withColumn(VALID_FROM, f.col(f"`{merge.sequence[0]}`"))
        points = points.unionByName(own.withColumn(DELETED, f.lit(1)), allowMissingColumns=True)
    positions = known_positions(given.columns, table.columns)
    points = points.withColumn(IS_NEW, f.lit(0)).unionByName(
        given.withColumn(IS_NEW, f.lit(1)), allowMissingColumns=True
    )
    last = Window.partitionBy(*keys, VALID_FROM).orderBy(*latest_first(positions))
    one_each = points.withColumn("_rank", f.row_number().over(last)).where(f.col("_rank") == 1)
    return (
        one_each.withColumn(VALID_TO, f.lead(VALID_FROM).over(by_start))
        .withColumn(CURRENT, f.col(VALID_TO).isNull())
        .select(*(f"`{name}`" for name in given.columns), VALID_TO, CURRENT, IS_NEW)
    )


def ends_of(states: DataFrame, merge: Merge) -> DataFrame:
    """The deletes that ended states: their ends that are not the start of another state.

    Such a delete is a point of the history even if it is not remembered, as in tables of earlier versions; its position
    then sorts first.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    keys = [f.col(f"`{key}`") for key in merge.keys]
    by_start = Window.partitionBy(*keys).orderBy(VALID_FROM)
    following = states.withColumn("_next", f.lead(VALID_FROM).over(by_start))
    ended = following.where(f.col(VALID_TO).isNotNull() & ~f.col(VALID_TO).eqNullSafe(f.col("_next")))
    return ended.select(*keys, f.col(VALID_TO).alias(VALID_FROM), f.lit(1).alias(DELETED))


def latest_first(positions: Sequence[str]) -> list[Column]:
    """The order of the points of one moment, of which the first applies: by position, then by arrival.

    A state in the table arrived after a remembered delete of its moment: otherwise the delete would have removed it.
    """
    from pyspark.sql import functions as f

    return [order((), positions).desc(), f.col(IS_NEW).desc(), f.col(DELETED).asc()]


def of_keys(rows: DataFrame, names: DataFrame, merge: Merge) -> DataFrame:
    """The rows with the keys of `names`."""
    from pyspark.sql import functions as f

    return rows.alias("t").join(f.broadcast(names).alias("s"), same_key(merge.keys, "t", "s"), "left_semi")
