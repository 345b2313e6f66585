"""The rows of a unified table: those of Delta at a version, and those of the log's offsets behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headwater.pipelines import columns
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.archive.key_rows import is_tombstone, last_of_keys, without_keys
from headwater.pipelines.archive.rows import rows_of
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.loads.targets.schemas import misfit
from headwater.pipelines.seam.marks import APPEND, UPSERT
from headwater.pipelines.sources import decoding
from headwater.pipelines.sources import topic as topic_source
from headwater.pipelines.unified.unified_offsets import UnifiedOffsets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["joined_halves", "require_fit", "unified_rows"]

#: Offsets behind a table by key that are read, and kept, when the frame is made. More would take long, while others
#: wait for the names that sessions share, and fill the disk: they are read by each scan.
READ_ONCE_MAX: Final = 1_000_000


def unified_rows(
    spark: SparkSession,
    brokers: Brokers,
    spec: TopicArchiveSpec,
    offsets: UnifiedOffsets,
    known: KnownColumns,
    schema: StructType,
    *,
    pushdown: bool,
    is_kept: bool = False,
) -> DataFrame:
    """The rows of a topic's table and tail: each committed record once, or the last one of each key, in its columns.

    The tail of a table by key is read here, by a job, unless it is long or the frame is kept.

    Args:
        schema: The columns that the archive gives to records now (`table_columns`).
        pushdown: See `topic.batch_between`.
        is_kept: The log's end is asked for by each statement that reads the frame (not of a table by key).

    Raises ArchiveError if records would not fit the table any more, and Spark's errors about the table.
    """
    lake = None
    if offsets.version >= 0:
        lake = spark.read.format("delta").option("versionAsOf", offsets.version).load(offsets.table)
        require_fit(lake.schema, schema, offsets.table)
    records = tail = None
    headers = spec.headers or decoding.topic_needs_headers(known, offsets.topic)
    json_fields = decoding.topic_json_fields(known, offsets.topic)
    if is_kept and offsets.mode == APPEND:
        records = topic_source.batch_from(
            spark,
            brokers,
            offsets.topic,
            offsets.topic_id,
            offsets.starts,
            headers=headers,
            json_fields=json_fields,
        )
    elif offsets.tail:
        declared = known.topics.get(offsets.topic)
        records = topic_source.batch_of_ranges(
            spark,
            brokers,
            offsets.topic,
            offsets.topic_id,
            offsets.tail,
            headers=headers,
            json_fields=json_fields,
            # The last record of a key is known by all of them.
            pushdown=pushdown and offsets.mode == APPEND,
            disorder_ms=None if declared is None else declared.timestamp_disorder_ms,
        )
    if records is not None:
        tail = rows_of(
            records,
            known,
            offsets.topic,
            keeps_value=spec.raw,
            headers=spec.headers,
            with_headers=spec.headers,
        )
    if offsets.mode == UPSERT and tail is not None:
        last = last_of_keys(with_a_key(tail, spec))
        if not is_kept and sum(end - start for start, end in offsets.tail.values()) <= READ_ONCE_MAX:
            # The log may be compacted while the statement runs, or before a later one of the frame.
            last = last.localCheckpoint()
        return upserted(lake, last, is_tombstone(known, offsets.topic, keeps_value=spec.raw))
    return joined_halves(spark, lake, tail, schema)


def require_fit(lake: StructType, schema: StructType, table: str) -> None:
    """Raise ArchiveError if rows with the columns `schema` would not fit a table with the columns `lake` any more."""
    found = misfit(lake.json(), schema.json(), merge=True)
    if found is not None:
        raise ArchiveError(f"{found} in the table {table}: the archive needs another table")


def with_a_key(tail: DataFrame, spec: TopicArchiveSpec) -> DataFrame:
    """The rows of a tail; a query of them fails at a record without a key, as the archive's round does."""
    from pyspark.sql import functions as f

    what = f.concat_ws(
        "",
        f.lit(f"{spec.topic}-"),
        f.col(columns.PARTITION),
        f.lit(" has a record without a key at offset "),
        f.col(columns.OFFSET),
        f.lit(f": the table {spec.table}, of the mode upsert, has none"),
    )
    has_key = f.col(columns.KEY).isNotNull()
    return tail.where(f.when(has_key, f.lit(True)).otherwise(f.raise_error(what).cast("boolean")))


def upserted(lake: DataFrame | None, last: DataFrame, is_deleted: Column) -> DataFrame:
    """The rows of a table by key, as they will be with the records behind it: the last of each key, unless it deletes.

    Args:
        lake: One row for each `KEY`; None without a table.
        last: The last row of each key of the tail (`last_of_keys`), in the tail's own columns.
        is_deleted: Whether a row of the tail deletes its key.
    """
    live = last.where(~is_deleted)
    return live if lake is None else without_keys(lake, last).unionByName(live, allowMissingColumns=True)


def joined_halves(spark: SparkSession, lake: DataFrame | None, tail: DataFrame | None, schema: StructType) -> DataFrame:
    """The rows of both, by the names of their columns; a column that one of them lacks is null there.

    A half that has no rows is None, and is left out of the plan. `schema` has the columns of the tail.
    """
    if lake is None:
        return spark.createDataFrame([], schema) if tail is None else tail
    if tail is not None:
        return lake.unionByName(tail, allowMissingColumns=True)
    from pyspark.sql import functions as f

    present = {name.lower() for name in lake.columns}
    missing = [field for field in schema.fields if field.name.lower() not in present]
    # A projection also without any: Spark lets INSERT write into a view of a table alone.
    return lake.select("*", *(f.lit(None).cast(each.dataType).alias(each.name) for each in missing))
