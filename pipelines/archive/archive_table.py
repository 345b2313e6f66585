"""The Delta table of an archive: made, checked, read for its offsets, and added to.

The table's properties say which topic it is of. Its offsets are the `txn` actions of its snapshot (`marks`): there is
nothing beside the table that could be lost, or disagree with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.archive.marks import PREFIX, ArchiveState, marks_of
from headwater.pipelines.archive.round_plan import RoundPlan
from headwater.pipelines.archive.written_tables import delta_writer_reason, indexed_columns
from headwater.pipelines.file_systems.file_system import FileSystem
from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.targets.schemas import check_schema, schema_text
from headwater.pipelines.locks.table_lock import table_lock
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ArchiveTable", "TableSnapshot"]

TOPIC_PROPERTY: Final = "headwater.archive.topic"
ID_PROPERTY: Final = "headwater.archive.topic.id"
MODE_PROPERTY: Final = "headwater.archive.mode"
APPEND: Final = "append"
_METADATA_KEY: Final = "headwater.archive"
#: With it, Delta drops the offsets after a time.
_RETENTION: Final = "delta.setTransactionRetentionDuration"
#: A table of more applications than this has no list of them in its last commit: its state is rebuilt by a job.
MARKS_CONF: Final = "spark.databricks.delta.setTransactionsInCrc.maxAllowed"
MARKS_MAX: Final = 20_000
#: Delta's error conditions of a commit that another one has overtaken.
_CONFLICTS: Final = re.compile(r"\[DELTA_(CONCURRENT_\w+|PROTOCOL_CHANGED|METADATA_CHANGED)")


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table as a round finds it.

    Attributes:
        transaction: Delta's transaction on this snapshot.
        writer_reason: Why only Delta's own writer can write to it; '' if files may be added.
        indexed_columns: How many columns have statistics.
        lacks: Whether it lacks columns that rows have.
    """

    transaction: Any
    version: int
    state: ArchiveState
    writer_reason: str
    indexed_columns: int
    lacks: bool


class ArchiveTable:
    """One table; the caller holds the archive's lock."""

    def __init__(self, path: str, topic: str, topic_id: str, files: FileSystem) -> None:
        self.path = path
        self._topic = topic
        self._topic_id = topic_id
        self._files = files

    def snapshot(self, spark: SparkSession, columns: StructType, *, merge_schema: bool) -> TableSnapshot:
        """The table's newest state, made if there is none. Raises ArchiveError if it cannot be this archive's."""
        spark.conf.set(MARKS_CONF, MARKS_MAX)
        transaction = jvm.start_delta_transaction(spark, self.path)
        if jvm.delta_version(transaction) < 0:
            self._create(spark, columns)
            transaction = jvm.start_delta_transaction(spark, self.path)
        self._require_own(transaction)
        state = ArchiveState.of(jvm.delta_marks(transaction, PREFIX), self._topic_id)
        had = jvm.delta_schema(transaction)
        try:
            check_schema(had, schema_text(columns.json()), merge=merge_schema)
        except LoadError as error:
            raise ArchiveError(_of_archive(str(error))) from None
        protocol, definition = ({**json.loads(text)} for text in jvm.delta_definition(transaction))
        fields = json.loads(had)["fields"]
        names = {field["name"] for field in fields}
        return TableSnapshot(
            transaction,
            jvm.delta_version(transaction),
            state,
            delta_writer_reason(protocol["protocol"], definition["metaData"], fields),
            indexed_columns(definition["metaData"]),
            lacks=any(field.name not in names for field in columns.fields),
        )

    def _create(self, spark: SparkSession, columns: StructType) -> None:
        found = [entry.name for entry in self._files.list(self.path) if not entry.name.startswith(("_", "."))]
        if found:
            raise ArchiveError(f"{self.path} holds files ({found[0]}) and is no Delta table: name a folder of its own")
        properties = {TOPIC_PROPERTY: self._topic, ID_PROPERTY: self._topic_id, MODE_PROPERTY: APPEND}
        # Another process may make the same table, where nothing but this lock keeps them apart.
        with table_lock(self.path):
            transaction = jvm.start_delta_transaction(spark, self.path)
            if jvm.delta_version(transaction) < 0:
                jvm.create_delta_table(transaction, spark.createDataFrame([], columns), properties)

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
        counts: Callable[[], tuple[int, int]],
        before_commit: Callable[[], None],
    ) -> int:
        """Commit a round: its files, a frame's rows, its offsets and gaps; the version.

        `counts` tells the numbers of rows and of those with an error, once all are written. `before_commit` raises if
        the round must not be committed. Raises ArchiveFailed if another commit has overtaken it.
        """
        import delta.tables  # noqa: F401 - it teaches PySpark the names of Delta's conflicts
        from pyspark.errors import PySparkException

        @contextmanager
        def committing() -> Iterator[str]:
            rows, errors = counts()
            before_commit()
            with table_lock(self.path):
                yield json.dumps({_METADATA_KEY: self._said(plan, rows, errors)}, separators=(",", ":"))

        try:
            return jvm.commit_delta_files(
                spark,
                snapshot.transaction,
                adds,
                frame,
                marks_of(self._topic_id, plan.ends, plan.gaps),
                merge_schema=snapshot.lacks,
                committing=committing,
            )
        except PySparkException as error:
            if _CONFLICTS.match(first_line(error)):
                raise ArchiveFailed(
                    f"another commit to {self.path} has overtaken this round: nothing of it was added"
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
