"""The Delta table of an archive: made, checked, read for its offsets, and added to.

The table's properties say which topic it is of. Its offsets are the `txn` actions of its snapshot (`marks`): there is
nothing beside the table that could be lost, or disagree with it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.archive.commit_lock import commit_lock
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.archive.marks import ArchiveState, marks_of
from headwater.pipelines.archive.round_plan import RoundPlan
from headwater.pipelines.archive.table_properties import refused_properties
from headwater.pipelines.archive.written_tables import delta_writer_reason, indexed_columns
from headwater.pipelines.file_systems.file_system import FileSystem, join
from headwater.pipelines.file_systems.opening import is_local
from headwater.pipelines.loads.offsets.ranges import described
from headwater.pipelines.loads.targets.schemas import misfit
from headwater.pipelines.seam.marks import ID_PROPERTY, MODE_PROPERTY, PREFIX, TOPIC_PROPERTY
from headwater.pipelines.spark import jvm_delta
from headwater.pipelines.spark.hadoop_files import spark_files
from headwater.pipelines.spark.spark_errors import is_delta_conflict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ArchiveTable", "TableSnapshot"]

log = logging.getLogger(__name__)

_METADATA_KEY: Final = "headwater.archive"
#: A table of more applications than this has no list of them in its last commit: its state is rebuilt by a job.
MARKS_CONF: Final = "spark.databricks.delta.setTransactionsInCrc.maxAllowed"
MARKS_MAX: Final = 20_000
_RETENTION: Final = "delta.deletedFileRetentionDuration"


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table as a round finds it.

    Attributes:
        transaction: Delta's transaction on this snapshot.
        writer_reason: Why only Delta's own writer can write to it; '' if files may be added.
        indexed_columns: How many columns have statistics.
        schema: Its columns in Spark's JSON.
        committed_ms: When the version was committed, in milliseconds since 1970.
        mode: How records become rows: `append` or `upsert`.
    """

    transaction: Any
    version: int
    state: ArchiveState
    writer_reason: str
    indexed_columns: int
    schema: str = field(repr=False)
    committed_ms: int
    mode: str

    def lacks(self, columns: StructType) -> bool:
        """Whether the table lacks columns."""
        names = {each["name"] for each in json.loads(self.schema)["fields"]}
        return any(each.name not in names for each in columns.fields)

    def check(self, columns: StructType, plan: RoundPlan, *, merge_schema: bool) -> None:
        """Raise ArchiveError if the rows of a plan, with these columns, do not fit the table."""
        found = misfit(self.schema, columns.json(), merge=merge_schema)
        if found is None:
            return
        reason = f"{found}: name another table"
        if not found.before:
            reason = f"the table has no column {found.column}: add it with merge_schema: true, or name another table"
        offsets = described({partition: (part,) for partition, part in sorted(plan.ranges.items())})
        raise ArchiveError(reason + (f"; the next offsets to add are of {offsets}" if offsets else ""))


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

    def snapshot(self, spark: SparkSession, declared_mode: str | None = None) -> TableSnapshot | None:
        """The table's newest state; None without a table. Raises ArchiveError if it cannot be this archive's."""
        spark.conf.set(MARKS_CONF, MARKS_MAX)
        transaction = jvm_delta.start_delta_transaction(spark, self.path)
        if jvm_delta.delta_version(transaction) < 0:
            return None
        protocol, definition = (json.loads(text) for text in jvm_delta.delta_definition(transaction))
        definition = definition["metaData"]
        properties = definition.get("configuration", {})
        refused = refused_properties(self.path, properties, self._topic, self._topic_id, declared_mode)
        if refused:
            raise ArchiveError(refused)
        schema = definition["schemaString"]
        return TableSnapshot(
            transaction,
            jvm_delta.delta_version(transaction),
            ArchiveState.of(jvm_delta.delta_marks(transaction, PREFIX), self._topic_id),
            delta_writer_reason(protocol["protocol"], definition, json.loads(schema)["fields"]),
            indexed_columns(definition),
            schema,
            jvm_delta.delta_committed_ms(transaction),
            properties[MODE_PROPERTY],
        )

    def files(self, spark: SparkSession) -> FileSystem:
        """The table's folder for the driver, which reaches it as Delta does: other ways to it may be closed."""
        return self._files if is_local(self.path) else spark_files(spark, self.path)

    def create(self, spark: SparkSession, columns: StructType, mode: str, before_commit: Callable[[], None]) -> None:
        """Make the table, without a row, unless there is one. Raises ArchiveError for a folder that holds files."""
        names = [entry.name for entry in self.files(spark).list(self.path) if not entry.name.startswith(("_", "."))]
        if names:
            raise ArchiveError(f"{self.path} holds files ({names[0]}) and is no Delta table: name a folder of its own")
        properties = {TOPIC_PROPERTY: self._topic, ID_PROPERTY: self._topic_id, MODE_PROPERTY: mode}
        with commit_lock(self.path, self._is_stopped):
            before_commit()
            transaction = jvm_delta.start_delta_transaction(spark, self.path)
            if jvm_delta.delta_version(transaction) < 0:
                jvm_delta.create_delta_table(spark, transaction, columns.json(), properties)

    def commit(
        self,
        spark: SparkSession,
        snapshot: TableSnapshot,
        plan: RoundPlan,
        adds: Sequence[str],
        frame: DataFrame | None,
        confirm: Callable[[], tuple[int, int]],
        columns: StructType,
        replaced: Sequence[Any] = (),
    ) -> tuple[int, int]:
        """Commit a round: its files, a frame's rows, its offsets and gaps.

        Returns the version, and how many files it has added.

        `replaced` are files of the table (`jvm_delta.delta_files`) whose rows are the frame's from then on.

        `confirm` is called in the last moment, when all files are written: it tells the numbers of rows and of those
        with an error, and raises if the round must not be committed: the files are deleted then, of `adds` and of
        the frame. Raises ArchiveFailed if another commit has overtaken it, and if a file is missing.
        """
        import delta.tables  # noqa: F401 - it teaches PySpark the names of Delta's conflicts
        from pyspark.errors import PySparkException

        @contextmanager
        def committing(added: Sequence[str]) -> Iterator[str]:
            with ExitStack() as held:
                try:
                    held.enter_context(commit_lock(self.path, self._is_stopped))
                    self._require(spark, added)
                    rows, errors = confirm()
                except BaseException:
                    self._delete(spark, added)
                    raise
                # From here on the files may be the table's, whatever is raised.
                yield json.dumps({_METADATA_KEY: self._said(plan, rows, errors)}, separators=(",", ":"))

        try:
            return jvm_delta.commit_delta_files(
                spark,
                snapshot.transaction,
                adds,
                frame,
                marks_of(self._topic_id, plan.ends, plan.gaps),
                replaced=replaced,
                merge_schema=snapshot.lacks(columns),
                committing=committing,
            )
        except PySparkException as error:
            if is_delta_conflict(error):
                raise ArchiveFailed(
                    f"another commit to {self.path} has overtaken this round; the next one begins where the table is"
                ) from None
            raise

    def _require(self, spark: SparkSession, added: Sequence[str]) -> None:
        """Raise ArchiveFailed if a file is gone. No folder is listed: a table may have many more files than a round."""
        files = self.files(spark)
        for name in added:
            if files.entry(join(self.path, name)) is None:
                raise ArchiveFailed(
                    f"{name} was removed from the table {self.path} before it was committed (by a VACUUM that keeps "
                    f"files for less than a round takes? See {_RETENTION}): nothing was added"
                )

    def _delete(self, spark: SparkSession, added: Sequence[str]) -> None:
        """Delete files that no commit will have. What cannot be deleted is left to VACUUM, and hides no other error."""
        try:
            files = self.files(spark)
            for name in added:
                files.delete(join(self.path, name))
                if is_local(self.path):
                    # Hadoop's checksums of a file that Spark has written, which VACUUM would not look for.
                    folder, _, last = name.rpartition("/")
                    files.delete(join(self.path, folder, f".{last}.crc"))
        except Exception as error:  # noqa: BLE001 - the round's own error is on its way
            log.warning("files that no commit has are left in %s: %s", self.path, error)

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
