"""The rows of a load: a topic's records between offsets, decoded, with their origin first and their faults last."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.pipelines import columns
from headwater.pipelines.datasource import TASK_RECORDS_OPTION
from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.offsets.ranges import Ranges, size
from headwater.pipelines.sources import decoding
from headwater.pipelines.sources import topic as topic_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.datasource.json_fields import JsonFields
    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = [
    "FIRST",
    "PartitionColumn",
    "RowsPlan",
    "gathered",
    "load_rows",
    "partition_rows",
    "place_columns",
    "raw_records",
    "rows_per_task",
]

FIRST: Final = (columns.PARTITION, columns.OFFSET, columns.TIMESTAMP, columns.KEY)
FILE_BYTES: Final = 256 << 20  # of the log, for one file: compressed records and columns are of a like size
TASK_ROWS_MIN: Final = 20_000
TASK_ROWS_MAX: Final = 5_000_000
#: Each partition's second, third ... range is a scan of its own.
SCANS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A partition column: `dt` for `date(...)`, `hour` for `hour(...)`, else the column itself."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """What to read: offsets of a topic; records with headers for raw topics if wanted."""

    topic: str
    ranges: Ranges
    rows_per_task: int
    headers: bool = False


def rows_per_task(ranges: Ranges, bytes_per_offset: float | None, cores: int) -> int:
    """The offsets of a task, which writes a file: of useful size, and enough of them for all cores.

    >>> rows_per_task({0: ((0, 10_000_000),)}, 30.0, 2), rows_per_task({0: ((0, 90_000),)}, 30.0, 2)
    (5000000, 45000)
    >>> rows_per_task({0: ((0, 10_000_000),)}, 10_000.0, 2)
    26843
    """
    by_size = FILE_BYTES / bytes_per_offset if bytes_per_offset else TASK_ROWS_MAX
    by_cores = -(-size(ranges) // max(cores, 1))
    return int(max(min(by_size, by_cores, TASK_ROWS_MAX), TASK_ROWS_MIN))


def load_rows(spark: SparkSession, brokers: Brokers, plan: RowsPlan, known: KnownColumns) -> DataFrame:
    """The rows: for a topic with a declared value, `FIRST`, the value's columns, `_error` and `_value`.

    A row that could not be decoded has the reason and the value's bytes there, and null in the value's columns. Of a
    raw topic the columns are those of Spark's `format("kafka")`.
    """
    is_decoded = plan.topic in known.topics and known.value_format(plan.topic) != "raw"
    needs_headers = decoding.topic_needs_headers(known, plan.topic) if is_decoded else plan.headers
    fields = decoding.topic_json_fields(known, plan.topic) if is_decoded else None
    records = raw_records(spark, brokers, plan, headers=needs_headers, fields=fields)
    return decoded_rows(records, plan.topic, known) if is_decoded else records


def decoded_rows(records: DataFrame, topic: str, known: KnownColumns) -> DataFrame:
    """Records as rows: the origin, the value's columns, the fault with the value's bytes."""
    from pyspark.sql import functions as f

    found = decoding.decode_topic(known, records, topic)
    value = [name for name in found.columns if name not in columns.RESERVED]
    fault = f.col(columns.ERROR)
    # A refused record's columns are what could be read of it: not to be taken for its value.
    fields = [f.when(fault.isNull(), f.col(f"`{name}`")).alias(name) for name in value]
    origin = [f.col(name) for name in FIRST]
    return found.select(*origin, *fields, fault, f.when(fault.isNotNull(), f.col(columns.VALUE)).alias(columns.VALUE))


def place_columns(names: Sequence[str]) -> tuple[str, str]:
    """The columns with the partition and the offset: of decoded rows, or of raw ones."""
    return (columns.PARTITION, columns.OFFSET) if columns.OFFSET in names else ("partition", "offset")


def partition_rows(rows: DataFrame, partitions: Sequence[PartitionColumn]) -> DataFrame:
    """The rows with partition columns at the end, gathered so that each value has few files of useful size.

    Raises LoadError for an expression that Spark refuses.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    if not partitions:
        return rows
    try:
        for each in partitions:
            if each.expression == f"`{each.name}`":
                continue
            taken = [name for name in rows.columns if name.lower() == each.name.lower()]
            if taken:
                raise LoadError(
                    f"--partition-by: the rows have a column {taken[0]} already; give the partition column another "
                    f"name: ... AS NAME"
                )
            rows = rows.withColumn(each.name, f.expr(each.expression))
        names = [each.name for each in partitions]
        rest = [name for name in rows.columns if name not in names]
        rows = rows.select(*(f"`{name}`" for name in (*rest, *names)))
    except PySparkException as error:
        from headwater.pipelines.spark.spark_errors import first_line

        raise LoadError(f"--partition-by: {first_line(error)}") from None
    if not rest:
        raise LoadError("--partition-by names every column: the files would have none")
    return rows


def gathered(rows: DataFrame, partitions: Sequence[PartitionColumn]) -> DataFrame:
    """The rows, shuffled so that a partition's value is written by few tasks: Spark splits large ones (REBALANCE)."""
    return rows.hint("rebalance", *(f"`{each.name}`" for each in partitions)) if partitions else rows


def raw_records(
    spark: SparkSession,
    brokers: Brokers,
    plan: RowsPlan,
    *,
    headers: bool = False,
    fields: JsonFields | None = None,
) -> DataFrame:
    """The records between the offsets, as `format("headwater")` reads them. Raises LoadError for too many pieces."""
    from headwater.pipelines.datasource import JSON_FIELDS_OPTION

    found: DataFrame | None = None
    for start, end in _scans(plan.topic, plan.ranges):
        reader = (
            spark.read.format(topic_source.SPARK_FORMAT)
            .options(**connection_options(brokers))
            .option("kafka.isolation.level", topic_source.READ_COMMITTED)
            .option("assign", json.dumps({plan.topic: [int(each) for each in start]}))
            .option("startingOffsets", json.dumps({plan.topic: start}))
            .option("endingOffsets", json.dumps({plan.topic: end}))
            .option("maxRecordsPerPartition", plan.rows_per_task)
            .option(TASK_RECORDS_OPTION, max(plan.rows_per_task // 2, 1))
            .option("includeHeaders", str(headers).lower())
        )
        if fields is not None:
            reader = reader.option(JSON_FIELDS_OPTION, fields.text())
        frame = reader.load()
        found = frame if found is None else found.unionAll(frame)
    assert found is not None, "a load without offsets reads nothing"
    return found


def _scans(topic: str, ranges: Ranges) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Start and end offsets of each scan, which reads one range of a partition. Raises LoadError for too many.

    >>> _scans("t", {0: ((1, 2), (5, 9)), 1: ((0, 4),)})
    [({'0': 1, '1': 0}, {'0': 2, '1': 4}), ({'0': 5}, {'0': 9})]
    """
    count = max(map(len, ranges.values()))
    if count > SCANS_MAX:
        raise LoadError(
            f"what is missing of {topic} lies in {count:,} pieces of one partition: load at most {SCANS_MAX} at a time "
            "by --from and --until"
        )
    found = []
    for position in range(count):
        part = {str(p): parts[position] for p, parts in ranges.items() if position < len(parts)}
        found.append(({p: start for p, (start, _) in part.items()}, {p: end for p, (_, end) in part.items()}))
    return found
