"""Rows as changes of a Delta table's rows (CDC): the latest state of each key, or every state with its time (SCD 2).

Idempotent twice over: the commit carries txnAppId and txnVersion (for MERGE they are settings of the session), and with
a sequence a change that is not later than what the table has is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pipelines.sinks import delta
from pipelines.sinks.session_settings import settings_for_a_job
from pipelines.sinks.stored_rows import DELETED, latest_of_each, with_deleted

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

    from pipelines.spec import DeltaSink, Merge

VALID_FROM: Final = "_valid_from"
VALID_TO: Final = "_valid_to"
CURRENT: Final = "_current"

OPERATION: Final = "_op"  # of an envelope: the table shows the outcome of a change, not its kind

_TRANSACTION_CONF: Final = "spark.databricks.delta.write.txn"


def changes(rows: DataFrame, sink: DeltaSink) -> DataFrame:
    """The rows as changes: the table's columns and DELETED."""
    assert sink.merge is not None
    marked = with_deleted(rows, sink.merge.delete_when)
    return delta.table_rows(marked, sink).drop(OPERATION)


def stored(rows: DataFrame, sink: DeltaSink) -> DataFrame:
    """The rows as the table holds them, without their order: what tells its columns."""
    from pyspark.sql import functions as f

    assert sink.merge is not None
    found = changes(rows, sink).drop(DELETED)
    if sink.merge.scd == 1:
        return found
    start = f.col(f"`{sink.merge.sequence[0]}`")
    return found.withColumns({VALID_FROM: start, VALID_TO: start, CURRENT: f.lit(True)})


def write(rows: DataFrame, sink: DeltaSink, path: str, app_id: str, batch_id: int) -> None:
    """Merge one micro-batch into the table unless it has it already."""
    from delta.tables import DeltaTable

    merge = sink.merge
    assert merge is not None
    spark = rows.sparkSession
    _prepare(spark, rows, sink, path)
    table = DeltaTable.forPath(spark, path)
    transaction = {f"{_TRANSACTION_CONF}AppId": app_id, f"{_TRANSACTION_CONF}Version": str(batch_id)}
    with settings_for_a_job(spark, transaction):
        if merge.scd == 1:
            _latest(table, changes(rows, sink), merge)
        else:
            _history(table, changes(rows, sink), merge)


def _prepare(spark: SparkSession, rows: DataFrame, sink: DeltaSink, path: str) -> None:
    """Make the table, or add the columns that it does not have: an explicit merge takes known columns only."""
    schema = delta.nullable(stored(rows, sink).schema)
    delta.create(spark, sink, path, schema)
    if not sink.merge_schema:
        return
    known = {name.lower() for name in spark.read.format("delta").load(path).columns}
    if any(name.lower() not in known for name in schema.fieldNames()):
        empty = spark.createDataFrame([], schema)
        empty.write.format("delta").mode("append").option("mergeSchema", "true").save(path)


def _same(keys: Sequence[str], left: str, right: str) -> Column:
    """Whether two rows have the same key; null is equal to null."""
    from pyspark.sql import functions as f

    found = f.lit(True)
    for key in keys:
        found = found & f.col(f"{left}.`{key}`").eqNullSafe(f.col(f"{right}.`{key}`"))
    return found


def _latest(table: DeltaTable, found: DataFrame, merge: Merge) -> None:
    from pyspark.sql import functions as f

    newest = latest_of_each(found, merge.keys, merge.sequence)
    data = [name for name in newest.columns if name != DELETED]
    is_later = f.lit(True)
    if merge.sequence:
        ours, theirs = (f.struct(*(f.col(f"{side}.`{n}`") for n in merge.sequence)) for side in ("s", "t"))
        is_later = ours > theirs
    is_deleted = f.col(f"s.{DELETED}") == 1
    values: dict[str, str | Column] = {f"`{name}`": f.col(f"s.`{name}`") for name in data}
    (
        table.alias("t")
        .merge(newest.alias("s"), _same(merge.keys, "t", "s"))
        .whenMatchedDelete(is_later & is_deleted)
        .whenMatchedUpdate(is_later & ~is_deleted, values)
        .whenNotMatchedInsert(~is_deleted, values)
        .execute()
    )


def _history(table: DeltaTable, found: DataFrame, merge: Merge) -> None:
    """Put changes into the histories of their keys, wherever in time they belong."""
    from pyspark.sql import functions as f

    start = merge.sequence[0]
    given = latest_of_each(found.where(f.col(f"`{start}`").isNotNull()), (*merge.keys, start), ())
    given = given.withColumn(VALID_FROM, f.col(f"`{start}`"))
    rows = _timeline(table.toDF(), given, merge)
    data = [name for name in given.columns if name != DELETED]
    values: dict[str, str | Column] = {f"`{name}`": f.col(f"s.`{name}`") for name in (*data, VALID_TO, CURRENT)}
    is_same = _same((*merge.keys, VALID_FROM), "t", "s")
    ends: dict[str, str | Column] = {VALID_TO: f.col(f"s.{VALID_TO}"), CURRENT: f.col(f"s.{CURRENT}")}
    (
        table.alias("t")
        .merge(rows.alias("s"), is_same)
        .whenMatchedUpdate(~f.col(f"s.{VALID_TO}").eqNullSafe(f.col(f"t.{VALID_TO}")), ends)
        .whenNotMatchedInsert(values=values)
        .execute()
    )


def _timeline(table: DataFrame, given: DataFrame, merge: Merge) -> DataFrame:
    """The whole histories of the keys that changes name: the table's states, the changes between, who follows whom.

    A state that ends where no other begins was ended by a delete, which is a point of the history, too. Of a state and
    a change at one moment the state, which is there already, stands.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    keys = [f.col(f"`{key}`") for key in merge.keys]
    names = given.select(*keys).distinct()
    states = table.alias("t").join(f.broadcast(names).alias("s"), _same(merge.keys, "t", "s"), "left_semi")
    by_start = Window.partitionBy(*keys).orderBy(VALID_FROM)
    following = states.withColumn("_next", f.lead(VALID_FROM).over(by_start))
    ended = following.where(f.col(VALID_TO).isNotNull() & ~f.col(VALID_TO).eqNullSafe(f.col("_next")))
    deletes = ended.select(*keys, f.col(VALID_TO).alias(VALID_FROM), f.lit(1).alias(DELETED))
    known = states.drop(VALID_TO, CURRENT).withColumn(DELETED, f.lit(0)).unionByName(deletes, allowMissingColumns=True)
    points = known.withColumn("_is_new", f.lit(0)).unionByName(
        given.withColumn("_is_new", f.lit(1)), allowMissingColumns=True
    )
    first = Window.partitionBy(*keys, VALID_FROM).orderBy("_is_new")
    one_each = points.withColumn("_rank", f.row_number().over(first)).where(f.col("_rank") == 1)
    ends = one_each.withColumn(VALID_TO, f.lead(VALID_FROM).over(by_start))
    return (
        ends.where(f.col(DELETED) == 0)
        .withColumn(CURRENT, f.col(VALID_TO).isNull())
        .select(*(f"`{name}`" for name in given.columns if name != DELETED), VALID_TO, CURRENT)
    )


def check(rows: DataFrame, sink: DeltaSink) -> None:
    """Raises ValueError, or what Spark says, if rows cannot be merged as the sink wants."""
    from pyspark.sql import functions as f

    merge = sink.merge
    assert merge is not None
    held = stored(rows, sink)
    held.select(*(f.col(f"`{name}`") for name in (*merge.keys, *merge.sequence))).schema  # noqa: B018 - analysed here
    changes(rows, sink).schema  # noqa: B018 - analysed here
    taken = [name for name in (VALID_FROM, VALID_TO, CURRENT) if name in rows.columns]
    if merge.scd == 2 and taken:
        raise ValueError(f"the rows have a column {taken[0]}, which is a history's own: name it otherwise")
    if DELETED in rows.columns:
        raise ValueError(f"the rows have a column {DELETED}, which is the merge's own: name it otherwise")


__all__ = ["CURRENT", "VALID_FROM", "VALID_TO", "changes", "check", "stored", "write"]
