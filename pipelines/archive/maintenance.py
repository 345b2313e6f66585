"""Keeps an archive's table small: compaction of small files, and VACUUM of what no version needs any more.

The rows of small files are sorted by the time of their records, and divided by it if they become several files. Files
that are large enough are never written again, so that a file has rows of a short time only, and offsets that were
archived one after the other: readers skip files by both.
"""

from __future__ import annotations

import json
import logging
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines import columns
from headwater.pipelines.archive.commit_lock import commit_lock
from headwater.pipelines.archive.errors import ArchiveFailed
from headwater.pipelines.archive.topic_archive import LOCK_PREFIX
from headwater.pipelines.archive.written_tables import delta_writer_reason
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.file_systems.file_system import FileSystem, FileSystemError, join
from headwater.pipelines.loads.offsets.log_state import client_of
from headwater.pipelines.locks.broker_lock import BrokerLock
from headwater.pipelines.locks.owner import Owner
from headwater.pipelines.seam.marks import APPEND, MODE_PROPERTY
from headwater.pipelines.spark import jvm_delta
from headwater.pipelines.spark.hadoop_files import spark_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Upkeep", "compact", "files_saved", "files_to_compact", "sole_driver", "vacuum", "vacuumed_s"]

log = logging.getLogger(__name__)

#: Files of this size are left alone: each compaction would write them again.
COMPACT_BYTES: Final = 128 << 20
FILE_BYTES: Final = 256 << 20
#: A table is compacted after this number of new files: an hour of one commit a minute, with one file each.
COMPACT_FILES: Final = 60
VACUUM_S: Final = 24 * 3_600.0
#: Rounds wait for a table's lock until they get it. Maintenance does not: it can be done later.
LOCK_S: Final = 60.0
#: In the table's folder: when it was vacuumed, in seconds since 1970.
VACUUMED: Final = "_headwater/vacuumed"


class Upkeep:
    """What an archiver has to do for one table; times in seconds of a monotonic clock. Pure.

    >>> upkeep = Upkeep()
    >>> upkeep.is_due(0.0), upkeep.looked(files=58, vacuumed_s=0.0), upkeep.is_due(100.0)
    (True, None, False)
    >>> upkeep.added(1), upkeep.is_compaction_due, upkeep.is_vacuum_due(100.0)
    (None, False, False)
    >>> upkeep.added(1), upkeep.is_compaction_due, upkeep.is_vacuum_due(86_400.0)
    (None, True, True)

    Attributes:
        is_known: Whether the table was looked at: an earlier driver may have left something to do.
        began_s: When the last attempt began.
    """

    def __init__(self) -> None:
        self._files = 0
        self._vacuumed_s = math.inf
        self.is_known = False
        self.began_s = -math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether there is something to do, if only a look at the table."""
        return not self.is_known or self.is_compaction_due or self.is_vacuum_due(now_s)

    def looked(self, files: int, vacuumed_s: float) -> None:
        """The table has so many files more than a compaction would leave, and was vacuumed then."""
        self.is_known, self._files, self._vacuumed_s = True, files, vacuumed_s

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


def files_to_compact(sizes: Mapping[str, int]) -> tuple[list[str], int]:
    """The small files of a table, by their sizes in bytes, and how many files their rows become; ([], 0) for none.

    >>> files_to_compact({"a": 1 << 20, "b": 1 << 20, "c": COMPACT_BYTES}), files_to_compact({"a": 1})
    ((['a', 'b'], 1), ([], 0))
    """
    small = sorted(name for name, size in sizes.items() if size < COMPACT_BYTES)
    files = max(1, math.ceil(sum(sizes[name] for name in small) / FILE_BYTES))
    return (small, files) if files < len(small) else ([], 0)


def files_saved(spark: SparkSession, table: str) -> int:
    """How many files fewer a compaction leaves. Files are listed only if there are enough for one."""
    transaction = jvm_delta.start_delta_transaction(spark, table)
    if jvm_delta.delta_version(transaction) < 0 or jvm_delta.delta_file_count(transaction) < COMPACT_FILES:
        return 0
    found = jvm_delta.delta_files(spark, transaction)
    small, files = files_to_compact({name: jvm_delta.delta_file_bytes(each) for name, each in found.items()})
    return len(small) - files


def vacuumed_s(files: FileSystem, table: str, topic: str, now_s: float) -> float:
    """When a table was vacuumed, in seconds since 1970. Raises FileSystemError.

    One that never was is told to have been some time in the day before, by its topic: else all tables of a driver would
    be vacuumed one after the other a day later. That is noted, so that a driver that often begins comes to it.
    """
    path = join(table, VACUUMED)
    noted = files.read(path)
    with suppress(ValueError):
        said = float(noted or b"")
        if math.isfinite(said):
            return min(said, now_s)
    found = now_s - VACUUM_S * zlib.crc32(topic.encode()) / 2**32
    files.replace(path, f"{found:.0f}".encode())
    return found


@contextmanager
def sole_driver(topic: str, topic_id: str, brokers: Brokers, files: FileSystem) -> Iterator[Callable[[], None]]:
    """Hold the archive's lock where nothing but it keeps commits from replacing each other: on object stores.

    Gives what confirms, before a commit, that it is still held. Raises LockHeldError while an archiver runs, which
    maintains the table itself, and LockUnavailableError; what is given raises LockLostError.
    """
    if files.is_atomic:
        yield lambda: None
        return
    owner = Owner.here(f"maintenance of {topic}")
    with BrokerLock(client_of(brokers), f"{LOCK_PREFIX}{topic_id}", f"the archive of {topic}", owner) as lock:
        lock.acquire()
        yield lock.confirm


def compact(
    spark: SparkSession,
    table: str,
    is_stopped: Callable[[], bool] = lambda: False,
    confirm: Callable[[], None] = lambda: None,
) -> None:
    """Write a table's small files as few.

    Raises ArchiveFailed if the table is locked for long, or when `is_stopped`, and Spark's errors.

    A table by key, one that asks for what only Delta does, and one with files of unknown rows get OPTIMIZE. `confirm`
    is called before the commit, before OPTIMIZE as a whole; what it raises ends the compaction without a commit.
    """
    transaction = jvm_delta.start_delta_transaction(spark, table)
    if jvm_delta.delta_version(transaction) >= 0 and _is_clustered(transaction):
        found = jvm_delta.delta_files(spark, transaction)
        small, files = files_to_compact({name: jvm_delta.delta_file_bytes(each) for name, each in found.items()})
        replaced = [found[name] for name in small]
        if not replaced:
            return
        if all(jvm_delta.delta_file_row_count(each) is not None for each in replaced):
            _cluster(spark, transaction, table, replaced, files, is_stopped, confirm)
            return
    spark.conf.set("spark.databricks.delta.optimize.minFileSize", COMPACT_BYTES)
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", FILE_BYTES)
    confirm()
    _run(spark, "OPTIMIZE {table}", table, is_stopped)


def _is_clustered(transaction: Any) -> bool:
    protocol, definition = (json.loads(text) for text in jvm_delta.delta_definition(transaction))
    definition = definition["metaData"]
    if definition.get("configuration", {}).get(MODE_PROPERTY) != APPEND:
        return False
    return not delta_writer_reason(protocol["protocol"], definition, json.loads(definition["schemaString"])["fields"])


def _cluster(
    spark: SparkSession,
    transaction: Any,
    table: str,
    replaced: Sequence[Any],
    files: int,
    is_stopped: Callable[[], bool],
    confirm: Callable[[], None],
) -> None:
    """Write the rows of files as `files` others, divided and sorted by `_timestamp`."""

    @contextmanager
    def committing() -> Iterator[None]:
        with commit_lock(table, is_stopped, LOCK_S):
            _require_going(table, is_stopped)
            confirm()
            yield

    _require_going(table, is_stopped)
    rows = jvm_delta.delta_file_rows(spark, transaction, replaced)
    divided = rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, columns.TIMESTAMP)
    jvm_delta.commit_delta_rearranged(
        spark,
        transaction,
        divided.sortWithinPartitions(columns.TIMESTAMP, columns.PARTITION, columns.OFFSET),
        replaced,
        committing=committing,
    )


def vacuum(spark: SparkSession, table: str, is_stopped: Callable[[], bool] = lambda: False) -> None:
    """Delete files that no version within the table's retention (7 days by default) needs. Raises as `compact` does."""
    _run(spark, "VACUUM {table}", table, is_stopped)
    try:
        spark_files(spark, table).replace(join(table, VACUUMED), f"{time.time():.0f}".encode())
    except FileSystemError as error:
        log.warning("it was not noted that %s was vacuumed: %s", table, error)


def _run(spark: SparkSession, statement: str, table: str, is_stopped: Callable[[], bool]) -> None:
    quoted = "delta.`" + table.replace("`", "``") + "`"
    with commit_lock(table, is_stopped, LOCK_S):
        _require_going(table, is_stopped)
        spark.sql(statement.format(table=quoted)).collect()


def _require_going(table: str, is_stopped: Callable[[], bool]) -> None:
    """Raise ArchiveFailed when stopped: jobs that begin later are cancelled by nobody."""
    if is_stopped():
        raise ArchiveFailed(f"stopped before the maintenance of {table} had ended")
