"""Keeps an archive's table small: compaction of small files, and VACUUM of what no version needs any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headwater.pipelines.archive.commit_lock import commit_lock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Upkeep", "compact", "vacuum"]

#: Files of this size are left alone: each compaction would write them again.
COMPACT_BYTES: Final = 128 << 20
FILE_BYTES: Final = 256 << 20
#: A table is compacted after this number of new files: an hour of one commit a minute, with one file each.
COMPACT_FILES: Final = 60
VACUUM_S: Final = 24 * 3_600.0


class Upkeep:
    """What an archiver has to do for one table; times in seconds of a monotonic clock. Pure.

    >>> upkeep = Upkeep(now_s=0.0)
    >>> upkeep.added(59), upkeep.is_compaction_due, upkeep.is_vacuum_due(100.0)
    (None, False, False)
    >>> upkeep.added(1), upkeep.is_compaction_due, upkeep.is_vacuum_due(86_400.0)
    (None, True, True)
    """

    def __init__(self, now_s: float) -> None:
        self._files = 0
        self._vacuumed_s = now_s

    def added(self, files: int) -> None:
        """Note files that a commit has added."""
        self._files += files

    @property
    def is_compaction_due(self) -> bool:
        """Whether the table has got many files."""
        return self._files >= COMPACT_FILES

    def is_vacuum_due(self, now_s: float) -> bool:
        """Whether a day has passed."""
        return now_s - self._vacuumed_s >= VACUUM_S

    def compacted(self) -> None:
        """The table was compacted, or could not be: the next attempt follows as many files later."""
        self._files = 0

    def vacuumed(self, now_s: float) -> None:
        """The same for VACUUM."""
        self._vacuumed_s = now_s


def compact(spark: SparkSession, table: str, is_stopped: Callable[[], bool] = lambda: False) -> None:
    """OPTIMIZE a table's small files. Raises ArchiveFailed if the table is locked for long, and Spark's errors."""
    spark.conf.set("spark.databricks.delta.optimize.minFileSize", COMPACT_BYTES)
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", FILE_BYTES)
    _run(spark, "OPTIMIZE {table}", table, is_stopped)


def vacuum(spark: SparkSession, table: str, is_stopped: Callable[[], bool] = lambda: False) -> None:
    """Delete files that no version within the table's retention (7 days by default) needs. Raises as `compact` does."""
    _run(spark, "VACUUM {table}", table, is_stopped)


def _run(spark: SparkSession, statement: str, table: str, is_stopped: Callable[[], bool]) -> None:
    quoted = "delta.`" + table.replace("`", "``") + "`"
    with commit_lock(table, is_stopped):
        spark.sql(statement.format(table=quoted)).collect()
