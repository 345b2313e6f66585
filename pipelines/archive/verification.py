"""Compares an archive's table with its own offsets, and with the log as far as the log still has the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines import columns
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.archive_table import ArchiveTable
from headwater.pipelines.archive.errors import ArchiveError, other_topic
from headwater.pipelines.archive.key_rows import KEY, is_tombstone, last_of_keys
from headwater.pipelines.archive.marks import ArchiveState
from headwater.pipelines.archive.round_plan import not_in_log
from headwater.pipelines.archive.rows import rows_of
from headwater.pipelines.archive.topic_archive import topic_log
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.file_systems.file_system import FileSystem
from headwater.pipelines.loads.offsets.log_state import keeps_all_records
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.ranges import Ranges, minus, shared, size
from headwater.pipelines.loads.rows import RowsPlan, raw_records
from headwater.pipelines.loads.targets.delta_target import in_ranges
from headwater.pipelines.seam.marks import UPSERT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["ArchiveVerification", "log_of_table", "verify_archive"]

_LISTED_MAX: Final = 10
_TASK_ROWS: Final = 1_000_000
_PLACE: Final = [columns.PARTITION, columns.OFFSET]


@dataclass(frozen=True, slots=True)
class ArchiveVerification:
    """What was compared, and every difference.

    Attributes:
        version: The table's version; -1 if it could not be compared, for a reason that is its problem.
        rows: Its rows.
        log_offsets: Offsets that were compared with the log.
    """

    topic: str
    table: str
    version: int
    rows: int
    log_offsets: int
    problems: tuple[str, ...]

    @classmethod
    def failed(cls, topic: str, table: str, reason: str) -> ArchiveVerification:
        """Of a table that could not be compared.

        >>> str(ArchiveVerification.failed("flights", "/lake/flights", "there is no table /lake/flights"))
        'flights: there is no table /lake/flights'
        """
        return cls(topic, table, -1, 0, 0, (reason,))

    @property
    def is_compared(self) -> bool:
        """Whether the table could be compared."""
        return self.version >= 0

    def value(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "topic": self.topic,
            "table": self.table,
            "version": self.version,
            "rows": self.rows,
            "log_offsets": self.log_offsets,
            "problems": list(self.problems),
        }

    def __str__(self) -> str:
        """The result in lines."""
        if not self.is_compared:
            return f"{self.topic}: {'; '.join(self.problems)}"
        verdict = "as it should be" if not self.problems else f"{len(self.problems)} problems"
        head = (
            f"{self.topic}: {self.table}, version {self.version}: {verdict}: {self.rows:,} rows, "
            f"{self.log_offsets:,} offsets of the log"
        )
        return "\n".join([head, *(f"  {problem}" for problem in self.problems)])


def verify_archive(
    spark: SparkSession, spec: TopicArchiveSpec, brokers: Brokers, files: FileSystem, known: Callable[[], KnownColumns]
) -> ArchiveVerification:
    """Verify an archive at its newest version. An archiver may run meanwhile.

    Raises ArchiveError without a table, or with that of another topic; ArchiveFailed, and Spark's errors.
    """
    log = topic_log(brokers, spec)
    snapshot = ArchiveTable(spec.table, spec.topic, log.topic_id, files).snapshot(spark)
    if snapshot is None:
        raise ArchiveError(f"there is no table {spec.table}")
    rows = spark.read.format("delta").option("versionAsOf", snapshot.version).load(spec.table)
    log, beyond = log_of_table(spec, brokers, snapshot.state, log)
    covered = _covered(snapshot.state)
    problems, counted = _of_rows(rows, covered)
    problems = beyond + problems
    if snapshot.mode == UPSERT:
        problems += _of_keys(rows)
    there = shared(covered, {p: ((first, log.end[p]),) for p, first in log.first.items()})
    if there:
        problems += _against_log(spark, spec, brokers, known(), rows, there, log, snapshot.mode)
    return ArchiveVerification(spec.topic, spec.table, snapshot.version, counted, size(there), tuple(problems))


def log_of_table(
    spec: TopicArchiveSpec, brokers: Brokers, state: ArchiveState, log: LogState
) -> tuple[LogState, list[str]]:
    """The log, and a problem for each partition whose offset in the table it does not have.

    `log` is from before the table was read: an archiver may have committed what was written in between, so that one
    with a problem is looked at again. Raises ArchiveError for another topic by then, and ArchiveFailed.
    """
    problems = not_in_log(state.ends, log)
    if not problems:
        return log, problems
    newest = topic_log(brokers, spec)
    if newest.topic_id != log.topic_id:
        raise ArchiveError(other_topic(spec.table, spec.topic, log.topic_id, spec.topic, newest.topic_id))
    return newest, not_in_log(state.ends, newest)


def _covered(state: ArchiveState) -> Ranges:
    """The offsets that the table has as far as their records had any."""
    return minus({partition: ((0, end),) for partition, end in state.ends.items()}, state.gaps)


def _of_rows(rows: DataFrame, covered: Ranges) -> tuple[list[str], int]:
    """Rows against the table's offsets, and the number of rows."""
    from pyspark.sql import functions as f

    places = rows.select(*_PLACE)
    twice = places.groupBy(*_PLACE).count().where(f.col("count") > 1).orderBy(*_PLACE).limit(_LISTED_MAX).collect()
    problems = [f"partition {row[0]}, offset {row[1]} is there {row[2]} times" for row in twice]
    inside = in_ranges(covered, *_PLACE) or "false"
    outside = places.where(f"NOT ({inside})").orderBy(*_PLACE).limit(_LISTED_MAX).collect()
    problems += [f"partition {row[0]}, offset {row[1]} is beyond the table's offsets, or in a gap" for row in outside]
    return problems, places.count()


def _against_log(
    spark: SparkSession,
    spec: TopicArchiveSpec,
    brokers: Brokers,
    known: KnownColumns,
    rows: DataFrame,
    there: Ranges,
    log: LogState,
    mode: str,
) -> list[str]:
    """Rows against the log's records, decoded again, in the columns that both have."""
    from pyspark.sql import functions as f

    records = raw_records(spark, brokers, RowsPlan(log.topic, there, _TASK_ROWS), headers=True)
    expected = rows_of(
        records, known, spec.topic, keeps_value=spec.raw, headers=spec.headers, with_headers=spec.headers
    )
    looks_for_more, problems = keeps_all_records(brokers, spec.topic)
    if mode == UPSERT:
        last = last_of_keys(expected)
        problems += _replaced(rows, last)
        expected = last.where(~is_tombstone(known, spec.topic, keeps_value=spec.raw))
    shown = [name for name in expected.columns if name in rows.columns and name not in _PLACE]
    stored = rows.where(in_ranges(there, *_PLACE))
    left = stored.select(*_PLACE, _content(shown).alias("a"))
    right = expected.select(*_PLACE, _content(shown).alias("b"))
    joined = left.join(right, _PLACE, "full_outer")
    is_stored, is_logged = f.col("a").isNotNull(), f.col("b").isNotNull()
    compared = [
        (is_logged & ~is_stored, "is in the log and not in the table"),
        (is_stored & is_logged & (f.col("a") != f.col("b")), "differs from the log's record"),
    ]
    if looks_for_more:
        compared.append((is_stored & ~is_logged, "is in the table and not in the log"))
    for condition, what in compared:
        listed = joined.where(condition).select(*_PLACE).orderBy(*_PLACE).limit(_LISTED_MAX).collect()
        problems += [f"partition {row[0]}, offset {row[1]} {what}" for row in listed]
    return problems


def _of_keys(rows: DataFrame) -> list[str]:
    """Keys with several rows in a table by key."""
    from pyspark.sql import functions as f

    twice = rows.groupBy(*KEY).agg(f.count("*").alias("rows"), f.max(columns.OFFSET).alias("last"))
    listed = twice.where(f.col("rows") > 1).orderBy(columns.PARTITION, "last").limit(_LISTED_MAX).collect()
    return [f"partition {row[0]}: the key of offset {row['last']} has {row['rows']} rows" for row in listed]


def _replaced(rows: DataFrame, last: DataFrame) -> list[str]:
    """Rows of a table by key of which the log has a later record, or a tombstone, that the table has passed."""
    from pyspark.sql import functions as f

    later = last.select(*(f.col(name).alias(f"_last{name}") for name in (*KEY, columns.OFFSET)))
    same = [f.col(name).eqNullSafe(f.col(f"_last{name}")) for name in KEY]
    is_later = f.col(f"_last{columns.OFFSET}") > f.col(columns.OFFSET)
    found = rows.join(later, same).where(is_later).select(*_PLACE, f"_last{columns.OFFSET}")
    listed = found.orderBy(*_PLACE).limit(_LISTED_MAX).collect()
    return [f"partition {row[0]}, offset {row[1]} is in the table, and offset {row[2]} has its key" for row in listed]


def _content(names: Sequence[str]) -> Column:
    """A hash of some columns. Maps have none in Spark, so that all is hashed as JSON."""
    from pyspark.sql import functions as f

    return f.xxhash64(f.to_json(f.struct(*(f.col(f"`{name}`") for name in names))))
