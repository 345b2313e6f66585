"""One round of one archive: a job that writes files, what Spark decodes of the rest, and the commit of both."""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headwater.pipelines import columns
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.archive_table import ArchiveTable, TableSnapshot
from headwater.pipelines.archive.arrow_rows import ArrowRows, ValueKind, arrow_rows
from headwater.pipelines.archive.earlier_rounds import REFUSED_S, EarlierRounds, refusal, written_by
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.archive.file_writing import UNDECODED, RangeWriter, WrittenRange, write_ranges
from headwater.pipelines.archive.key_rows import (
    KEY,
    KeyCounts,
    is_tombstone,
    key_counts,
    last_of_keys,
    with_keys,
    without_keys,
)
from headwater.pipelines.archive.round_plan import RoundPlan, cut
from headwater.pipelines.archive.rows import read_records, rows_of
from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.datasource.offsets import OffsetRange
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.datasource.reading import RangePartition, plan_tasks
from headwater.pipelines.file_systems.file_system import FileSystem, join
from headwater.pipelines.file_systems.opening import is_local
from headwater.pipelines.loads.counted_rows import counted
from headwater.pipelines.loads.rows import rows_per_task
from headwater.pipelines.seam.marks import UPSERT
from headwater.pipelines.sources import decoding
from headwater.pipelines.sources.topic import batch_of_ranges
from headwater.pipelines.spark import jvm_delta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["ArchiveRound", "RoundOutcome"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """A round that has ended well.

    Attributes:
        version: The table's version after it; that before it if there was nothing to add.
        archived: The next offset of each partition in the table.
        rows: Rows added; `errors` of them hold values that could not be decoded.
    """

    topic: str
    table: str
    version: int
    plan: RoundPlan
    archived: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    errors: int = 0
    files: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the table was as far as the log already."""
        return self.plan.is_empty

    def value(self) -> dict[str, Any]:
        """The round as JSON values."""
        return {
            "topic": self.topic,
            "table": self.table,
            "version": self.version,
            "rows": self.rows,
            "errors": self.errors,
            "files": self.files,
            "offsets": {str(partition): list(part) for partition, part in sorted(self.plan.ranges.items())},
            "backlog": self.plan.backlog,
        }

    def __str__(self) -> str:
        """The round as a line."""
        errors = f", {self.errors:,} of them could not be decoded" if self.errors else ""
        behind = f"; {self.plan.backlog:,} offsets are left" if self.plan.backlog else ""
        return f"{self.topic}: version {self.version} of {self.table} has {self.rows:,} more rows{errors}{behind}"


#: The first value of each partition that cannot be decoded: its offset, and why.
_Undecoded = dict[int, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class ArchiveRound:
    """A round on one snapshot of a table.

    Attributes:
        files: How tasks reach the table's folder.
        bytes_per_offset: About the size of an offset in the log; None if it is not known.
        earlier: The archive's own, from round to round.
    """

    spec: TopicArchiveSpec
    brokers: Brokers
    files: FileSystem
    topic_id: str
    bytes_per_offset: float | None
    spark: SparkSession
    known: KnownColumns
    schema: StructType
    table: ArchiveTable
    snapshot: TableSnapshot
    earlier: EarlierRounds

    def add(self, plan: RoundPlan, before_commit: Callable[[], None]) -> RoundOutcome:
        """Add the records of a plan.

        `before_commit` raises if the round must not be committed. Whatever is raised before the commit, the table has
        nothing of the round; the outcome of a commit that fails is unknown, and the next round reads it from the table.
        """
        if self.snapshot.mode == UPSERT:
            return self._upsert(plan, before_commit)
        self._sweep()
        round_name = uuid.uuid4().hex
        is_committing = False
        numbers = (0, 0)
        try:
            written = self._write(plan, round_name)
            if written is None:
                decoded: DataFrame | None = _in_order(self._decoded_log(plan))
            else:
                left = [each for each in written if each.undecoded]
                decoded = self._decoded(left) if left else None
            # Before Delta's writer has written anything: nobody would know its files.
            bad = self._first_undecoded(decoded) if decoded is not None and self.spec.on_error == "suspend" else {}
            if not bad:
                frame, counts = counted(decoded) if decoded is not None else (None, None)

                def confirm() -> tuple[int, int]:
                    nonlocal is_committing, numbers
                    numbers = self._checked(written, None if counts is None else counts()[:2])
                    before_commit()
                    is_committing = True
                    return numbers

                added = [each.add for each in written or () if each.add]
                version, files = self.table.commit(self.spark, self.snapshot, plan, added, frame, confirm, self.schema)
        except BaseException:
            if not is_committing:
                self.earlier.has_failed(round_name)
                self._sweep()
            raise
        finally:
            self._delete_undecoded(round_name)
        if bad:
            self.earlier.has_failed(round_name)
            self._sweep()
            return self._add_before(bad, plan, before_commit)
        archived = {**self.snapshot.state.ends, **plan.ends}
        return RoundOutcome(self.spec.topic, self.spec.table, version, plan, archived, *numbers, files)

    def _upsert(self, plan: RoundPlan, before_commit: Callable[[], None]) -> RoundOutcome:
        """Let the last record of each key take the place of the key's row; a tombstone deletes it.

        Files with rows of these keys are written anew, as MERGE does. The round's records are read once: the log may be
        compacted meanwhile.
        """
        spec = self.spec
        frame: DataFrame | None = None
        replaced: list[Any] = []
        numbers = KeyCounts()
        if plan.ranges:
            rows = self._decoded_log(plan)
            last = last_of_keys(rows).localCheckpoint()
            is_deleted = is_tombstone(self.known, spec.topic, keeps_value=spec.raw)
            numbers = key_counts(last, is_deleted)
            if numbers.keyless is not None:
                raise ArchiveError(
                    f"{spec.topic}-{numbers.keyless[0]} has a record without a key at offset {numbers.keyless[1]}: a "
                    "table of the mode upsert has none; archive the topic into another table, with mode: append"
                )
            if spec.on_error == "suspend" and numbers.errors:
                return self._add_before(self._first_undecoded(rows), plan, before_commit)
            frame, replaced = self._rewritten(last, last.where(~is_deleted))
        written = (numbers.rows, numbers.errors)

        def confirm() -> tuple[int, int]:
            before_commit()
            return written

        version, files = self.table.commit(self.spark, self.snapshot, plan, [], frame, confirm, self.schema, replaced)
        archived = {**self.snapshot.state.ends, **plan.ends}
        return RoundOutcome(spec.topic, spec.table, version, plan, archived, *written, files)

    def _rewritten(self, last: DataFrame, live: DataFrame) -> tuple[DataFrame, list[Any]]:
        """The rows to write for the last records of some keys, and the table's files that they replace.

        `live` are those of them that are no tombstones.
        """
        from pyspark.sql import functions as f

        spark, snapshot = self.spark, self.snapshot
        files = jvm_delta.delta_files(spark, snapshot.transaction)
        if not files:
            return live, []
        table = jvm_delta.delta_file_rows(spark, snapshot.transaction, list(files.values()))
        places = table.select(*KEY, f.col("_metadata.file_name").alias("_file"))
        touched = with_keys(places, last).select("_file").distinct().collect()
        replaced = [files[row[0]] for row in touched]
        if not replaced:
            return live, []
        kept = without_keys(jvm_delta.delta_file_rows(spark, snapshot.transaction, replaced), last)
        return kept.unionByName(live, allowMissingColumns=True), replaced

    def _decoded_log(self, plan: RoundPlan) -> DataFrame:
        """The rows of a plan's records, by Spark's own decoding."""
        topic = self.spec.topic
        records = batch_of_ranges(
            self.spark,
            self.brokers,
            topic,
            self.topic_id,
            plan.ranges,
            headers=True,
            json_fields=decoding.topic_json_fields(self.known, topic),
            pushdown=False,
        )
        return rows_of(
            records,
            self.known,
            topic,
            keeps_value=self.spec.raw,
            headers=self.spec.headers,
            with_headers=self.spec.headers,
        )

    def _write(self, plan: RoundPlan, round_name: str) -> list[WrittenRange] | None:
        """Let tasks write a plan's records. None if they cannot, where Spark's own client can."""
        if not plan.ranges:
            return []
        if not self.earlier.tasks_write:
            return None
        rows = arrow_rows(self.known, self.spec.topic, self.schema, keeps_value=self.spec.raw)
        if self.snapshot.writer_reason or self.snapshot.lacks(self.schema):
            # Spark writes all of it: Delta's writer does what the table asks for, and adds new columns.
            rows = ArrowRows(ValueKind.SPARK, rows.schema)
        try:
            written = self._write_by_tasks(rows, plan, round_name)
        except Exception as error:
            reason = "" if is_local(self.spec.table) else refusal(error)
            if not reason or not self._spark_writes():
                raise
            if self.earlier.refused():
                log.warning(
                    "tasks cannot write to the table %s (%s), and Spark can: it writes the rows of this round and of "
                    "those of the next %d minutes",
                    self.spec.table,
                    reason,
                    REFUSED_S // 60,
                )
            self.earlier.has_failed(round_name)
            self._sweep()
            return None
        self.earlier.wrote()
        return written

    def _spark_writes(self) -> bool:
        """Whether Spark's own client can write to the table's file system now: else it is the file system that fails.

        A byte, because an empty file needs no room.
        """
        path = join(self.spec.table, "_headwater", f".writes-{uuid.uuid4().hex}")
        try:
            files = self.table.files(self.spark)
            try:
                with files.writer(path) as file:
                    file.write(b"1")
            finally:
                files.delete(path)
        except Exception as error:  # noqa: BLE001 - whatever it is, the tasks' own error is reported
            log.debug("neither can Spark: %s", error)
            return False
        return True

    def _write_by_tasks(self, rows: ArrowRows, plan: RoundPlan, round_name: str) -> list[WrittenRange]:
        topic = self.spec.topic
        given = {
            **connection_options(self.brokers),
            "subscribe": topic,
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
        }
        if rows.fields is not None:
            from headwater.pipelines.datasource import JSON_FIELDS_OPTION

            given[JSON_FIELDS_OPTION] = rows.fields.text()
        options = ReadOptions.parse(given)
        ranges = {partition: (part,) for partition, part in plan.ranges.items()}
        task_rows = rows_per_task(ranges, self.bytes_per_offset, self.spark.sparkContext.defaultParallelism)
        split = dataclasses.replace(
            options, records_per_partition_max=task_rows, records_per_task_min=max(task_rows // 2, 1)
        )
        topic_id = uuid.UUID(self.topic_id)
        tasks: list[RangePartition] = plan_tasks(
            [OffsetRange(topic, partition, *part, topic_id) for partition, part in plan.ranges.items()], split
        )
        writer = RangeWriter(self.spec.table, self.files, rows, options, round_name, self.snapshot.indexed_columns)
        job = self.spark.sparkContext.parallelize(tasks, len(tasks)).mapPartitions(write_ranges(writer))
        return list(job.collect())

    def _decoded(self, left: Sequence[WrittenRange]) -> DataFrame:
        """The rows of records that tasks have left to Spark."""
        decoded = rows_of(
            read_records(self.spark, [each.undecoded for each in left]),
            self.known,
            self.spec.topic,
            keeps_value=self.spec.raw,
            headers=self.spec.headers,
            with_headers=any(each.has_headers for each in left),
        )
        return _in_order(decoded)

    def _checked(self, written: Sequence[WrittenRange] | None, decoded: tuple[int, int] | None) -> tuple[int, int]:
        """The numbers of rows and of those with an error. Raises ArchiveFailed if Spark's are not all that were left.

        Without tasks that have written, Spark's are all.
        """
        in_frame, errors = decoded or (0, 0)
        if errors and self.spec.on_error == "suspend":
            raise ArchiveFailed(
                f"{errors:,} records of {self.spec.topic} could be decoded at first, and then not: nothing was added"
            )
        if written is None:
            return in_frame, errors
        left = sum(each.undecoded_rows for each in written)
        if in_frame != left:
            raise ArchiveFailed(
                f"Spark was to decode {left:,} records of {self.spec.topic} and has {in_frame:,} rows: nothing was "
                "added (spark.sql.files.ignoreMissingFiles?)"
            )
        return sum(each.rows for each in written) + in_frame, errors

    def _first_undecoded(self, decoded: DataFrame) -> _Undecoded:
        """The first row of each partition with an error."""
        from pyspark.sql import functions as f

        place, error = f.col(columns.OFFSET), f.col(columns.ERROR)
        if columns.ERROR not in decoded.columns:
            return {}
        bad = decoded.where(error.isNotNull())
        if self.snapshot.mode == UPSERT:
            bad = bad.where(~is_tombstone(self.known, self.spec.topic, keeps_value=self.spec.raw))
        first = bad.groupBy(columns.PARTITION).agg(f.min(place), f.min_by(error, place)).collect()
        return {int(row[0]): (int(row[1]), str(row[2])) for row in first}

    def _add_before(self, bad: _Undecoded, plan: RoundPlan, before_commit: Callable[[], None]) -> RoundOutcome:
        """Add what comes before the first value of each partition that cannot be decoded. Raises ArchiveError."""
        if not bad:
            raise ArchiveFailed(f"the log of {self.spec.topic} was compacted while it was read: nothing was added")
        shorter = cut(plan, {partition: offset for partition, (offset, _) in bad.items()})
        if shorter.offsets:
            return self.add(shorter, before_commit)
        partition, (offset, reason) = min(bad.items())
        raise ArchiveError(
            f"{self.spec.topic}-{partition} has a value at offset {offset} that cannot be decoded ({reason}): "
            "on_error: suspend stops before it; with `store` it becomes a row"
        )

    def _sweep(self) -> None:
        """Delete what failed rounds have left. What cannot be deleted now is tried again before the next round."""
        failed = self.earlier.failed
        if not failed:
            return
        try:
            files = self.table.files(self.spark)
            for name in written_by(failed, (entry.name for entry in files.list(self.spec.table))):
                files.delete(join(self.spec.table, name))
            for each in failed:
                files.delete(join(self.spec.table, UNDECODED, each))
        except Exception as error:  # noqa: BLE001 - the round's own error, or the next round, is what matters
            log.warning("files that no commit has are left in %s: %s", self.spec.table, error)
        else:
            self.earlier.swept()

    def _delete_undecoded(self, round_name: str) -> None:
        """Delete the records that tasks have left to Spark; what cannot be deleted now is left to the next open."""
        try:
            self.table.files(self.spark).delete(join(self.spec.table, UNDECODED, round_name))
        except Exception as error:  # noqa: BLE001 - the round has ended, well or with an error of its own
            log.warning("records that were left to Spark were not deleted: %s", error)


def _in_order(rows: DataFrame) -> DataFrame:
    """Rows whose files are in the order of the log."""
    return rows.sortWithinPartitions(columns.PARTITION, columns.OFFSET)
