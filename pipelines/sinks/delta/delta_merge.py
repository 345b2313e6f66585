"""Rows as changes of a Delta table's rows (CDC): the latest state of each key, or every state with its period (SCD 2).

The table's commit carries txnAppId and txnVersion (session settings for MERGE): a batch that the table already has is
skipped. `change_rule` defines the later change; deletes (`delta_deletes`) and collapsed changes (`delta_collapsed`) are
remembered beside the table, before its rows and without the batch's number, which would skip a batch that is repeated
with other changes after the user has changed the stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from headwater.pipelines import columns
from headwater.pipelines.definition.sinks.underscore_columns import left_out
from headwater.pipelines.sinks.change_order import known_positions, order
from headwater.pipelines.sinks.delta import (
    delta_collapsed,
    delta_deletes,
    delta_history,
    delta_rows,
    delta_runs,
)
from headwater.pipelines.sinks.delta import merge_columns as chosen
from headwater.pipelines.sinks.delta.merge_columns import CURRENT, VALID_FROM, VALID_TO, WRITTEN_AT
from headwater.pipelines.sinks.stored_rows import DELETED, latest_of_each, same_key, with_deleted
from headwater.pipelines.spark import jvm_delta
from headwater.pipelines.spark.nullable import nullable
from headwater.pipelines.spark.session_settings import settings_for_a_job

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField

    from headwater.pipelines.definition import DeltaSink, Merge

_TRANSACTION_CONF: Final = "spark.databricks.delta.write.txn"


def changes(rows: DataFrame, sink: DeltaSink) -> DataFrame:
    """The rows as changes: the table's columns and DELETED."""
    merge = sink.merge
    assert merge is not None
    found = _ordered(rows, sink)
    kept = {*chosen.stored(sink, merge, found.columns), DELETED}
    return found.drop(*(name for name in found.columns if name not in kept))


def _ordered(rows: DataFrame, sink: DeltaSink) -> DataFrame:
    """The rows as changes with all their columns, which include the positions that order them."""
    assert sink.merge is not None
    return _storable(with_deleted(rows, sink.merge.delete_when), sink)


def _storable(rows: DataFrame, sink: DeltaSink) -> DataFrame:
    """The rows with every column that the table could store."""
    position = [columns.SOURCE_POSITION] if sink.merge is not None and sink.merge.sequence else []
    # The table holds the result of a change, not its kind.
    return delta_rows.with_layout(rows, sink, *position).drop(columns.OPERATION)


def _as_stored(found: DataFrame, sink: DeltaSink, table: Collection[str]) -> DataFrame:
    """The changes without the columns that the table does not store.

    Those that `underscore_columns` leaves out are null where the table still has them of earlier rows.
    """
    from pyspark.sql import functions as f

    assert sink.merge is not None
    stored = {*chosen.stored(sink, sink.merge, found.columns), DELETED}
    gone = [name for name in found.columns if name not in stored]
    known = {name.lower() for name in table}
    omitted = left_out(sink.underscore_columns, gone, ())
    nulls = {name: f.lit(None).cast(found.schema[name].dataType) for name in omitted if name.lower() in known}
    return found.withColumns(nulls).drop(*(name for name in gone if name not in nulls)) if gone else found


def stored(rows: DataFrame, sink: DeltaSink) -> DataFrame:
    """The rows as the table stores them, in no order; they determine the table's columns."""
    from pyspark.sql import functions as f

    assert sink.merge is not None
    found = changes(rows, sink).drop(DELETED)
    if sink.merge.scd == 1:
        return found
    start = f.col(f"`{sink.merge.sequence[0]}`")
    return found.withColumns({VALID_FROM: start, VALID_TO: start, CURRENT: f.lit(True)})


def write(rows: DataFrame, sink: DeltaSink, path: str, app_id: str, batch_id: int) -> None:
    """Merge one micro-batch into the table unless the table already has it."""
    from delta.tables import DeltaTable

    merge = sink.merge
    assert merge is not None
    spark = rows.sparkSession
    _prepare(spark, rows, sink, path)
    last = jvm_delta.delta_last_batch(jvm_delta.start_delta_transaction(spark, path), app_id)
    if last is not None and last >= batch_id:
        return  # MERGE would skip it; what is remembered beside the table must stay as well
    table = DeltaTable.forPath(spark, path)
    found, fields = _ordered(rows, sink), table.toDF().schema.fields
    held = [field.name for field in fields]
    if columns.SOURCE_POSITION not in held:  # of an earlier version, and the sink adds no columns
        found = found.drop(columns.SOURCE_POSITION)
    placed = chosen.stored(sink, merge, (name for name in found.columns if name != DELETED))
    incomparable = _incomparable(fields, placed)
    names = dict.fromkeys((*(name for name in held if name not in incomparable), *placed))
    tracked = chosen.tracked(sink, merge, names, rows.columns)
    collapsed = None if tracked is None else delta_collapsed.open_table(spark, sink, path)
    transaction = {f"{_TRANSACTION_CONF}AppId": app_id, f"{_TRANSACTION_CONF}Version": str(batch_id)}
    delta_deletes.remember(spark, found, merge, path)
    deletes = delta_deletes.remembered(spark, merge, path)
    if tracked is not None and collapsed is not None:
        delta_runs.write(table, _as_stored(found, sink, held), merge, tracked, deletes, collapsed, transaction)
        return
    with settings_for_a_job(spark, transaction):
        if merge.scd == 1:
            newest = latest_of_each(found, merge.keys, merge.sequence)
            _latest(table, _as_stored(newest, sink, held), merge, deletes)
        else:
            delta_history.write(table, _as_stored(found, sink, held), merge, deletes)


def _incomparable(fields: Iterable[StructField], rows: Collection[str]) -> set[str]:
    """The columns that only the table has and that Spark cannot compare; `check` refuses such columns of the rows."""
    known = {name.lower() for name in rows}
    return {field.name for field in fields if field.name.lower() not in known and not _is_comparable(field.dataType)}


def _is_comparable(kind: DataType) -> bool:
    """Whether Spark compares values of a type."""
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    if isinstance(kind, StructType):
        return all(_is_comparable(field.dataType) for field in kind.fields)
    return (
        _is_comparable(kind.elementType) if isinstance(kind, ArrayType) else not isinstance(kind, MapType | VariantType)
    )


def _prepare(spark: SparkSession, rows: DataFrame, sink: DeltaSink, path: str) -> None:
    """Create the table, or add missing columns: an explicit merge accepts only known columns."""
    schema = nullable(stored(rows, sink).schema)
    delta_rows.create(spark, sink, path, schema)
    if not sink.merge_schema:
        return
    known = {name.lower() for name in spark.read.format("delta").load(path).columns}
    if any(name.lower() not in known for name in schema.fieldNames()):
        empty = spark.createDataFrame([], schema)
        empty.write.format("delta").mode("append").option("mergeSchema", "true").save(path)


def _latest(table: DeltaTable, newest: DataFrame, merge: Merge, deletes: DataFrame | None) -> None:
    """Merge the last change of each key into the table."""
    from pyspark.sql import functions as f

    data = [name for name in newest.columns if name != DELETED]
    is_later = f.lit(True)
    if merge.sequence:
        positions = known_positions(newest.columns, table.toDF().columns)
        is_later = order(merge.sequence, positions, "s") >= order(merge.sequence, positions, "t")
        if deletes is not None:
            newest = delta_deletes.not_hidden(deletes, newest, merge, known_positions(newest.columns))
    is_deleted = f.col(f"s.{DELETED}") == 1
    values: dict[str, str | Column] = {f"`{name}`": f.col(f"s.`{name}`") for name in data}
    (
        table.alias("t")
        .merge(newest.alias("s"), same_key(merge.keys, "t", "s"))
        .whenMatchedDelete(is_later & is_deleted)
        .whenMatchedUpdate(is_later & ~is_deleted, values)
        .whenNotMatchedInsert(~is_deleted, values)
        .execute()
    )


def check(rows: DataFrame, sink: DeltaSink) -> None:
    """Check that rows can be merged as declared. Raises ValueError or Spark's errors."""
    from pyspark.sql import functions as f

    merge = sink.merge
    assert merge is not None
    chosen.check(merge, _storable(rows, sink).columns)
    held = stored(rows, sink)
    held.select(*(f.col(f"`{name}`") for name in (*merge.keys, *merge.sequence))).schema  # noqa: B018 - analysed here
    changes(rows, sink).schema  # noqa: B018 - analysed here
    tracked = chosen.tracked(sink, merge, held.columns, rows.columns)
    values = f.struct(f.lit(0), *(f.col(f"`{name}`") for name in tracked or ()))
    held.select(values.eqNullSafe(values)).schema  # noqa: B018 - analysed here: Spark compares no maps
    if tracked is not None and WRITTEN_AT in held.columns:
        raise ValueError(f"the rows have a column {WRITTEN_AT}, which is the merge's own: name it otherwise")
    taken = [name for name in (VALID_FROM, VALID_TO, CURRENT) if name in rows.columns]
    if merge.scd == 2 and taken:
        raise ValueError(f"the rows have a column {taken[0]}, which is a history's own: name it otherwise")
    if DELETED in rows.columns:
        raise ValueError(f"the rows have a column {DELETED}, which is the merge's own: name it otherwise")


__all__ = ["changes", "check", "stored", "write"]
