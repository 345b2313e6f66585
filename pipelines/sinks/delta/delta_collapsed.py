"""The collapsed changes of a history with tracked columns: a Delta table in its folder `_headwater_collapsed`.

A state that stands for several changes has the row of the last one. This table keeps the rows of the others, so that a
change that arrives late between two of them can split the state. For a key and a moment it has the change that applies
at this moment, or none: a change is in the merged table, in this table, or in both.

A batch's collapsed changes are written before its rows. No change is removed here that its own batch does not replace.
After a crash between the two writes, the repeated batch therefore finds the same changes, and completes the writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headwater.pipelines.sinks.delta.merge_columns import CURRENT, VALID_FROM, VALID_TO, WRITTEN_AT
from headwater.pipelines.sinks.stored_rows import DELETED, same_key
from headwater.pipelines.spark.delta_folders import is_delta_table
from headwater.pipelines.spark.nullable import nullable

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from headwater.pipelines.definition import DeltaSink, Merge

__all__ = ["FOLDER", "open_table", "remember", "remembered"]

FOLDER: Final = "_headwater_collapsed"

_COLUMN_MAPPING: Final = "delta.columnMapping.mode"  # admits names that Delta otherwise refuses


def open_table(spark: SparkSession, sink: DeltaSink, path: str) -> DeltaTable:
    """The table of the merged table at `path`, with all of its columns; created if it does not exist."""
    from delta.tables import DeltaTable
    from pyspark.sql import functions as f

    where = f"{path}/{FOLDER}"
    merged = spark.read.format("delta").load(path).drop(VALID_FROM, VALID_TO, CURRENT)
    schema = nullable(merged.withColumn(WRITTEN_AT, f.current_timestamp()).schema)
    if not is_delta_table(spark, where):
        builder = DeltaTable.createIfNotExists(spark).location(where).addColumns(schema)
        if _COLUMN_MAPPING in sink.properties:
            builder = builder.property(_COLUMN_MAPPING, str(sink.properties[_COLUMN_MAPPING]))
        builder.execute()
    found = DeltaTable.forPath(spark, where)
    known = {field.name.lower(): field.dataType for field in found.toDF().schema.fields}
    if any(_is_missing(field.dataType, known.get(field.name.lower())) for field in schema.fields):
        empty = spark.createDataFrame([], schema)
        empty.write.format("delta").mode("append").option("mergeSchema", "true").save(where)
        found = DeltaTable.forPath(spark, where)
    return found


def _is_missing(wanted: DataType, known: DataType | None) -> bool:
    """Whether a column, or a field within it, is missing."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    return known is None or (wanted != known and isinstance(known, ArrayType | MapType | StructType))


def remembered(collapsed: DeltaTable) -> DataFrame:
    """The collapsed changes."""
    return collapsed.toDF().drop(WRITTEN_AT)


def remember(collapsed: DeltaTable, points: DataFrame, merge: Merge) -> None:
    """Store points of histories: rows are inserted, or replace the row of their moment; deletes remove it."""
    from pyspark.sql import functions as f

    if points.isEmpty():
        return
    known = {name.lower() for name in points.columns}
    names = [name for name in collapsed.toDF().columns if name.lower() in known]
    values: dict[str, str | Column] = {f"`{name}`": f.col(f"s.`{name}`") for name in names}
    values[WRITTEN_AT] = f.current_timestamp()
    is_deleted = f.col(f"s.{DELETED}") == 1
    (
        collapsed.alias("t")
        .merge(points.alias("s"), same_key(tuple(dict.fromkeys((*merge.keys, *merge.sequence))), "t", "s"))
        .whenMatchedDelete(is_deleted)
        .whenMatchedUpdate(set=values)
        .whenNotMatchedInsert(~is_deleted, values)
        .execute()
    )
