"""A unified table as a stream: the columns of the unified table, and the log's offsets as its one coordinate.

What the archive's table has is read from it, and later records from the log (`datasource.history`). A table by key has
the last record of each key only, whose history is gone: its stream begins at the log's start.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.errors import ArchiveError, other_topic
from headwater.pipelines.archive.rows import FIRST, rows_of
from headwater.pipelines.columns import quoted
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.datasource.history import ARCHIVED, History
from headwater.pipelines.file_systems.local import local_path
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.seam.marks import UPSERT
from headwater.pipelines.seam.table_offsets import TableOffsets
from headwater.pipelines.sources import decoding
from headwater.pipelines.sources import topic as topic_source
from headwater.pipelines.unified.unified_rows import require_fit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import TopicSource
    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["check_start", "first_offsets", "from_time", "unified_stream"]

_PLACES: Final = ("partition", "offset", "timestamp", "key")


def check_start(spec: TopicArchiveSpec, table: TableOffsets | None, log: LogState, source: TopicSource) -> None:
    """Raise ArchiveError for a table of another topic, and for a start before the log's where a table has no history.

    Pure.
    """
    if table is None:
        return
    if table.topic_id != log.topic_id:
        raise ArchiveError(other_topic(spec.table, table.topic, table.topic_id, spec.topic, log.topic_id))
    if table.mode != UPSERT or not isinstance(source.starting_offsets, Mapping):
        return
    for partition, offset in sorted(source.starting_offsets.items()):
        first = log.first.get(partition, 0)
        if 0 <= offset < first:
            raise ArchiveError(
                f"the table {spec.table} keeps the last record of each key: its history has no offsets, and a stream "
                f"begins at the log's start, which is offset {first} in {spec.topic}-{partition}; the start is {offset}"
            )


def first_offsets(spec: TopicArchiveSpec, table: TableOffsets | None, log: LogState) -> Mapping[int, int]:
    """The first offset of each partition that a stream can begin at. Raises SourceError."""
    if table is None or table.mode == UPSERT:
        return log.first
    history = History(local_path(spec.table), spec.topic)
    # The table may have grown since the log was asked; the source compares their ends.
    history.renew(uuid.UUID(log.topic_id), lambda seams: seams, lambda: None, 1)
    found = history.first({(spec.topic, partition): first for partition, first in log.first.items()})
    return {partition: offset for (_, partition), offset in found.items()}


def from_time(rows: DataFrame, source: TopicSource, log: LogState) -> TopicSource:
    """A source that begins at a time, by offsets: the first row of each partition that is not earlier.

    Args:
        rows: The unified table, at a later state than `log`. A partition without such a row is read from `log`'s end.
    """
    from pyspark.sql import functions as f

    moment = source.starting_offsets
    assert isinstance(moment, dt.datetime), "the caller looks at that"
    later = rows.where(f.col("_timestamp") >= f.lit(moment))
    found = {row[0]: row[1] for row in later.groupBy("_partition").agg(f.min("_offset")).collect()}
    return source.model_copy(update={"starting_offsets": {**log.end, **found}})


def unified_stream(
    spark: SparkSession,
    brokers: Brokers,
    spec: TopicArchiveSpec,
    table: TableOffsets | None,
    known: KnownColumns,
    schema: StructType,
    source: TopicSource,
    most: int | None,
) -> DataFrame:
    """The rows of a topic from the source's start on, in the columns of the unified table.

    Args:
        table: How far the archive's table is, None if there is none yet: the log is read alone then, as for a table by
            key.
        schema: The columns that the archive gives to records now (`table_columns`).
        most: Records in a micro-batch at most; history ends with a file.

    Raises ArchiveError if records would not fit the table any more, and Spark's errors about the table.
    """
    from pyspark.sql import functions as f

    is_history = table is not None and table.mode != UPSERT
    records = topic_source.stream(
        spark,
        brokers,
        source,
        most,
        headers=spec.headers or decoding.topic_needs_headers(known, spec.topic),
        json_fields=None if is_history else decoding.topic_json_fields(known, spec.topic),
        archive_table=local_path(spec.table) if is_history else "",
    )
    if not is_history:
        lake = None if table is None else spark.read.format("delta").load(spec.table).schema
        live = _rows(records, known, spec)
        if lake is None:
            return live
        require_fit(lake, schema, spec.table)
        return _in_columns(live, lake, schema)
    lake = _places(records, records.schema[ARCHIVED].dataType)
    require_fit(lake, schema, spec.table)
    # With `raw: true` the table has values, which need no decoding.
    live = records.withColumn("value", f.when(f.col(ARCHIVED).isNull(), f.col("value")))
    rows = _rows(live, known, spec, carried=ARCHIVED)
    return _in_columns(rows, lake, schema)


def _rows(records: DataFrame, known: KnownColumns, spec: TopicArchiveSpec, *, carried: str = "") -> DataFrame:
    return rows_of(
        records,
        known,
        spec.topic,
        keeps_value=spec.raw,
        headers=spec.headers,
        with_headers=spec.headers,
        carried=carried,
    )


def _places(records: DataFrame, row: object) -> StructType:
    """The table's columns: those of a record's place, and of its row."""
    from pyspark.sql.types import StructField, StructType

    assert isinstance(row, StructType), "the source says so"
    places = [StructField(name, records.schema[of].dataType) for name, of in zip(FIRST, _PLACES, strict=True)]
    return StructType([*places, *row.fields])


def _in_columns(rows: DataFrame, lake: StructType, schema: StructType) -> DataFrame:
    """Rows with the table's columns, then those that it lacks, as `joined_halves` has them."""
    from pyspark.sql import functions as f

    has_history = ARCHIVED in rows.columns
    past = f.col(ARCHIVED).isNotNull() if has_history else f.lit(False)
    live = {field.name.lower(): field.name for field in schema.fields}
    own = {field.name.lower() for field in lake.fields}
    found = []
    for field in lake.fields:
        here = live.get(field.name.lower())
        column = f.lit(None).cast(field.dataType) if here is None else f.col(quoted(here))
        if has_history and field.name not in FIRST:
            column = f.when(past, f.col(ARCHIVED)[field.name]).otherwise(column)
        found.append(column.alias(field.name))
    for name, there in live.items():
        if name not in own:
            found.append(f.when(~past, f.col(quoted(there))).alias(there))
    return rows.select(*found)
