"""Inserts changes into histories with tracked columns (`change_rule.history`): a run of changes is one state.

The changes of a key are in three places: each state of the table has the row of its last change, `delta_collapsed` has
the others, `delta_deletes` the deletes. The histories of a batch's keys are computed from all of them and the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from headwater.pipelines.sinks.change_order import known_positions
from headwater.pipelines.sinks.change_rule import POSITION
from headwater.pipelines.sinks.delta import delta_collapsed
from headwater.pipelines.sinks.delta.delta_history import IS_NEW, ends_of, latest_first, merge_states, moments, of_keys
from headwater.pipelines.sinks.delta.merge_columns import CURRENT, VALID_FROM, VALID_TO
from headwater.pipelines.sinks.stored_rows import DELETED, same_key
from headwater.pipelines.spark.session_settings import settings_for_a_job

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame

    from headwater.pipelines.definition import Merge

__all__ = ["write"]

_IS_START: Final = "headwater_is_start"  # 1 for a state's start whose own row is not known
_IS_KEPT: Final = "headwater_is_kept"  # 1 if the moment has a row in `delta_collapsed`
_BEGINS: Final = "headwater_begins"  # whether the point begins a run; a delete is a run of its own
_ENDS: Final = "headwater_ends"  # whether the point ends a run
_RUN: Final = "headwater_run"
_NEXT: Final = "headwater_next"  # moment of the next point
_LAST: Final = "headwater_last"  # the run's last point


def write(
    table: DeltaTable,
    changes: DataFrame,
    merge: Merge,
    tracked: Sequence[str],
    deletes: DataFrame | None,
    collapsed: DeltaTable,
    transaction: Mapping[str, str],
) -> None:
    """Merge changes into the table. `deletes` are the remembered deletes, including those of `changes`.

    `transaction` are the session settings that identify the batch in the table's commit.
    """
    from pyspark.sql import functions as f

    given = moments(changes, merge).persist()
    try:
        points = _in_runs(_points(table.toDF(), given, merge, deletes, collapsed), merge, tracked)
        is_new = f.col(IS_NEW) == 1
        is_collapsed = (f.col(DELETED) == 0) & ~f.col(_ENDS) & (f.col(_IS_START) == 0)
        changed = (is_new & (f.col(_IS_KEPT) == 1)) | (is_collapsed & (is_new | (f.col(_IS_KEPT) == 0)))
        to_remember = points.where(changed).persist()
        try:
            delta_collapsed.remember(collapsed, to_remember, merge)
        finally:
            to_remember.unpersist()
        # The points are computed again, and not cached: MERGE thus reads the table within its own transaction. A commit
        # since the first reading (of another writer, or a user's DELETE) is read, and a later one is a conflict. The
        # repeated reading finds the same changes, as that of a batch that runs again after a crash.
        with settings_for_a_job(changes.sparkSession, transaction):
            _merge(table, points, merge)
    finally:
        given.unpersist()


def _points(
    table: DataFrame, given: DataFrame, merge: Merge, deletes: DataFrame | None, collapsed: DeltaTable
) -> DataFrame:
    """All points of the changed keys: for each moment the change that applies, with the moment in VALID_FROM."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    keys = [f.col(f"`{key}`") for key in merge.keys]
    sequence = merge.sequence[0]
    moment = f.col(f"`{sequence}`")
    names = given.select(*keys).distinct()
    positions = known_positions(given.columns, table.columns)
    states = of_keys(table, names, merge)
    rows = states.drop(VALID_TO, CURRENT).withColumn(DELETED, f.lit(0))
    # The first change of a run is in `delta_collapsed`, unless the user has removed it there.
    start = rows.where(~f.col(VALID_FROM).eqNullSafe(moment)).withColumn(sequence, f.col(VALID_FROM))
    start = start.withColumns({name: f.lit(None).cast(POSITION[name]) for name in positions} | {_IS_START: f.lit(1)})
    kept = _within(states, of_keys(delta_collapsed.remembered(collapsed), names, merge), merge)
    kept = kept.drop(*(name for name in kept.columns if name not in table.columns))
    kept = kept.withColumns({VALID_FROM: moment, DELETED: f.lit(0), _IS_KEPT: f.lit(1)})
    sides = [start, ends_of(states, merge), kept, given.withColumn(IS_NEW, f.lit(1))]
    if deletes is not None:
        place = dict.fromkeys((*merge.keys, sequence, *positions))
        own = of_keys(deletes, names, merge).select(*(f"`{name}`" for name in place))
        # A start has no position. Its change is later than a delete that was remembered before: the state would
        # otherwise not begin there. A new delete is among `given` as well.
        own = own.alias("t").join(start.alias("s"), same_key((*merge.keys, sequence), "t", "s"), "left_anti")
        sides.append(own.withColumns({VALID_FROM: moment, DELETED: f.lit(1)}))
    found = rows.withColumn(VALID_FROM, moment)
    for side in sides:
        found = found.unionByName(side, allowMissingColumns=True)
    found = found.withColumns({name: f.coalesce(name, f.lit(0)) for name in (_IS_START, _IS_KEPT, IS_NEW)})
    of_moment = Window.partitionBy(*keys, VALID_FROM)
    # Without positions, a state's row precedes a remembered change, which may be of a state that a user has deleted.
    last = of_moment.orderBy(*latest_first(positions), f.col(_IS_START).asc(), f.col(_IS_KEPT).asc())
    ranked = found.withColumns({_RUN: f.row_number().over(last), _IS_KEPT: f.max(_IS_KEPT).over(of_moment)})
    return ranked.where(f.col(_RUN) == 1).drop(_RUN)


def _within(states: DataFrame, kept: DataFrame, merge: Merge) -> DataFrame:
    """The remembered changes that lie in a state of the table.

    Others are of states that a user has deleted from the table. They may also be of a batch that was interrupted before
    its states were written: these are among the changes of the repeated batch.
    """
    from pyspark.sql import functions as f

    moment = f.col(f"t.`{merge.sequence[0]}`")
    is_before_end = f.col(f"s.{VALID_TO}").isNull() | (moment < f.col(f"s.{VALID_TO}"))
    is_within = (f.col(f"s.{VALID_FROM}") <= moment) & is_before_end
    return kept.alias("t").join(states.alias("s"), same_key(merge.keys, "t", "s") & is_within, "left_semi")


def _in_runs(points: DataFrame, merge: Merge, tracked: Sequence[str]) -> DataFrame:
    """The points with _BEGINS, _ENDS and _LAST."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    keys = [f.col(f"`{key}`") for key in merge.keys]
    by_moment = Window.partitionBy(*keys).orderBy(VALID_FROM)
    values = f.struct(f.lit(0).alias("_"), f.col(DELETED), *(f.col(f"`{name}`") for name in tracked))
    is_same = (f.col(DELETED) == 0) & f.lag(values).over(by_moment).eqNullSafe(values)
    begun = points.withColumns({_BEGINS: ~is_same, _NEXT: f.lead(VALID_FROM).over(by_moment)})
    ends = f.coalesce(f.lead(_BEGINS).over(by_moment), f.lit(True))
    numbered = begun.withColumns({_RUN: f.sum(f.col(_BEGINS).cast("bigint")).over(by_moment), _ENDS: ends})
    of_run = Window.partitionBy(*keys, _RUN).orderBy(VALID_FROM)
    whole = of_run.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    point = f.struct(*(f.col(f"`{name}`") for name in begun.columns if name != VALID_FROM))
    return numbered.withColumn(_LAST, f.last(point).over(whole))


def _merge(table: DeltaTable, points: DataFrame, merge: Merge) -> None:
    """Make the table's states those of the runs: a point that begins none ends the state that began there."""
    from pyspark.sql import functions as f

    own = {*merge.keys, VALID_FROM}
    internal = {DELETED, IS_NEW, _IS_START, _IS_KEPT, _BEGINS, _ENDS, _RUN, _NEXT, _LAST}
    data = [name for name in points.columns if name not in internal]
    rows = points.select(
        *(f.col(f"`{name}`") if name in own else f.col(_LAST)[name].alias(name) for name in data),
        f.col(_LAST)[_NEXT].alias(VALID_TO),
        f.col(_LAST)[_NEXT].isNull().alias(CURRENT),
        f.col(_LAST)[IS_NEW].alias(IS_NEW),
        f.when(f.col(_BEGINS), f.col(DELETED)).otherwise(1).alias(DELETED),
    )
    merge_states(table, rows, merge)
