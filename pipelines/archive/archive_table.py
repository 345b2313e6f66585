"""The Delta table of an archive: made, checked, read for its offsets, and added to.

The table's properties say which topic it is of. Its offsets are the `txn` actions of its snapshot (`marks`): there is
nothing beside the table that could be lost, or disagree with it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.archive.marks import ArchiveState, marks_of
from headwater.pipelines.archive.round_plan import RoundPlan
from headwater.pipelines.archive.written_tables import delta_writer_reason, indexed_columns
from headwater.pipelines.file_systems.file_system import FileSystem
from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.targets.schemas import check_schema, schema_text
from headwater.pipelines.locks.table_lock import table_lock
from headwater.pipelines.seam.marks import ID_PROPERTY, MODE_PROPERTY, PREFIX, TOPIC_PROPERTY
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ArchiveTable", "TableSnapshot"]

APPEND: Final = "append"
_METADATA_KEY: Final = "headwater.archive"
#: With it, Delta drops the offsets after a time.
_RETENTION: Final = "delta.setTransactionRetentionDuration"
#: A table of more applications than this has no list of them in its last commit: its state is rebuilt by a job.
MARKS_CONF: Final = "spark.databricks.delta.setTransactionsInCrc.maxAllowed"
MARKS_MAX: Final = 20_000
#: Longest wait for the lock of a table on a local disk.
LOCK_S_MAX: Final = 60.0
#: Delta's error conditions of a commit that another one has overtaken.
_CONFLICTS: Final = re.compile(r"\[DELTA_(CONCURRENT_\w+|PROTOCOL_CHANGED|METADATA_CHANGED)")


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table as a round finds it.

    Attributes:
        transaction: Delta's transaction on this snapshot.
        writer_reason: Why only Delta's own writer can write to it; '' if files may be added.
        indexed_columns: How many columns have statistics.
        schema: Its columns in Spark's JSON.
        committed_ms: When the version was committed, in milliseconds since 1970.
    """

    transaction: Any
    version: int
    state: ArchiveState
    writer_reason: str
    indexed_columns: int
    schema: str = field(repr=False)
    committed_ms: int

    def lacks(self, columns: StructType) -> bool:
        """Whether the table lacks columns."""
        names = {each["name"] for each in json.loads(self.schema)["fields"]}
        return any(each.name not in names for each in columns.fields)

    def check(self, columns: StructType, *, merge_schema: bool) -> None:
        """Raise ArchiveError if rows with these columns do not fit the table."""
        try:
            check_schema(self.schema, schema_text(columns.json()), merge=merge_schema)
        except LoadError as error:
            raise ArchiveError(_of_archive(str(error))) from None


class ArchiveTable:
    """One table; the caller holds the archive's lock."""

    def __init__(
        self,
        path: str,
        topic: str,
        topic_id: str,
        files: FileSystem,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.path = path
        self._is_stopped = is_stopped
        self._topic = topic
        self._topic_id = topic_id
        self._files = files

    def snapshot(self, spark: SparkSession) -> TableSnapshot | None:
        """The table's newest state; None without a table. Raises ArchiveError if it cannot be this archive's."""
        spark.conf.set(MARKS_CONF, MARKS_MAX)
        transaction = jvm.start_delta_transaction(spark, self.path)
        if jvm.delta_version(transaction) < 0:
            return None
        self._require_own(transaction)
        protocol, definition = (json.loads(text) for text in jvm.delta_definition(transaction))
        schema = jvm.delta_schema(transaction)
        return TableSnapshot(
            transaction,
            jvm.delta_version(transaction),
            ArchiveState.of(jvm.delta_marks(transaction, PREFIX), self._topic_id),
            delta_writer_reason(protocol["protocol"], definition["metaData"], json.loads(schema)["fields"]),
            indexed_columns(definition["metaData"]),
            schema,
            jvm.delta_committed_ms(transaction),
        )

    def create(self, spark: SparkSession, columns: StructType, before_commit: Callable[[], None]) -> None:
        """Make the table, without a row, unless there is one. Raises ArchiveError for a folder that holds files."""
        names = [entry.name for entry in self._files.list(self.path) if not entry.name.startswith(("_", "."))]
        if names:
            raise ArchiveError(f"{self.path} holds files ({names[0]}) and is no Delta table: name a folder of its own")
        properties = {TOPIC_PROPERTY: self._topic, ID_PROPERTY: self._topic_id, MODE_PROPERTY: APPEND}
        with self._committing():
            before_commit()
            transaction = jvm.start_delta_transaction(spark, self.path)
            if jvm.delta_version(transaction) < 0:
                jvm.create_delta_table(spark, transaction, columns.json(), properties)

    @contextmanager
    def _committing(self) -> Iterator[None]:
        """Hold the lock of a table on a local disk, where nothing else keeps the commits of two processes apart.

        Raises ArchiveFailed if another process holds it for long: it may be frozen.
        """
        deadline_s = time.monotonic() + LOCK_S_MAX

        def waits(path: str) -> None:
            if self._is_stopped() or time.monotonic() > deadline_s:
                raise ArchiveFailed(f"another process holds the lock of the table {path}: nothing was added")

        with table_lock(self.path, waits):
            yield

    def _require_own(self, transaction: Any) -> None:
        topic, topic_id, mode, retention = (
            jvm.delta_property(transaction, name) for name in (TOPIC_PROPERTY, ID_PROPERTY, MODE_PROPERTY, _RETENTION)
        )
        if topic_id is None:
            raise ArchiveError(f"the table {self.path} was not made by an archive: name another table")
        if topic_id != self._topic_id:
            raise ArchiveError(
                f"the table {self.path} is the archive of topic {topic} with the id {topic_id}, and {self._topic} has "
                f"the id {self._topic_id}: a topic that was made anew needs another table"
            )
        if mode != APPEND:
            raise ArchiveError(f"the table {self.path} is an archive of the mode {mode}, which this release lacks")
        if retention is not None:
            raise ArchiveError(
                f"the table {self.path} has the property {_RETENTION} = {retention}: it would forget its offsets; "
                "unset it"
            )

    def commit(
        self,
        spark: SparkSession,
        snapshot: TableSnapshot,
        plan: RoundPlan,
        adds: Sequence[str],
        frame: DataFrame | None,
        confirm: Callable[[], tuple[int, int]],
        columns: StructType,
    ) -> int:
        """Commit a round: its files, a frame's rows, its offsets and gaps; the version.

        `confirm` is called in the last moment, when all files are written: it tells the numbers of rows and of those
        with an error, and raises if the round must not be committed. Raises ArchiveFailed if another commit has
        overtaken it.
        """
        import delta.tables  # noqa: F401 - it teaches PySpark the names of Delta's conflicts
        from pyspark.errors import PySparkException

        @contextmanager
        def committing() -> Iterator[str]:
            with self._committing():
                rows, errors = confirm()
                yield json.dumps({_METADATA_KEY: self._said(plan, rows, errors)}, separators=(",", ":"))

        try:
            return jvm.commit_delta_files(
                spark,
                snapshot.transaction,
                adds,
                frame,
                marks_of(self._topic_id, plan.ends, plan.gaps),
                merge_schema=snapshot.lacks(columns),
                committing=committing,
            )
        except PySparkException as error:
            if _CONFLICTS.match(first_line(error)):
                raise ArchiveFailed(
                    f"another commit to {self.path} has overtaken this round; the next one begins where the table is"
                ) from None
            raise

    def _said(self, plan: RoundPlan, rows: int, errors: int) -> Mapping[str, Any]:
        """What a commit says of its round, for people: the state is the marks'."""
        return {
            "version": 1,
            "topic": self._topic,
            "topic_id": self._topic_id,
            "offsets": {str(partition): list(part) for partition, part in sorted(plan.ranges.items())},
            "gaps": {str(partition): [list(each) for each in parts] for partition, parts in sorted(plan.gaps.items())},
            "rows": rows,
            "errors": errors,
        }


def _of_archive(said: str) -> str:
    """A message of loads in the words of archives.

    >>> _of_archive("column a was int and is string now: load into another target")
    'column a was int and is string now: name another table'
    """
    said = said.replace("load into another target", "name another table").replace("the target has", "the table has")
    return said.replace("--merge-schema", "merge_schema: true")
