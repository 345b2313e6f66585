"""The archive of one topic: its lock, and its rounds."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.errors import ClientError
from headwater.pipelines import columns
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.archive_table import ArchiveTable, TableSnapshot
from headwater.pipelines.archive.arrow_rows import ArrowRows, ValueKind, arrow_rows
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.archive.file_writing import UNDECODED, RangeWriter, WrittenRange, total, write_ranges
from headwater.pipelines.archive.marks import ArchiveState
from headwater.pipelines.archive.round_plan import RoundPlan, plan_round
from headwater.pipelines.archive.rows import is_raw, read_records, rows_of, table_columns
from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.datasource.offsets import OffsetRange
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.datasource.reading import RangePartition, plan_tasks
from headwater.pipelines.file_systems.file_system import FileSystem, join
from headwater.pipelines.loads.counted_rows import counted
from headwater.pipelines.loads.errors import LoadError, LoadFailed
from headwater.pipelines.loads.offsets.log_state import bytes_per_offset, client_of, log_state
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.positions import PositionKind
from headwater.pipelines.loads.rows import rows_per_task
from headwater.pipelines.locks.broker_lock import BrokerLock, LockHeldError
from headwater.pipelines.locks.owner import Owner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["RoundOutcome", "TopicArchive"]

LOCK_PREFIX: Final = "headwater.archive."
#: Of a round without a known size of records: a record of this size is small.
BYTES_PER_OFFSET: Final = 100


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """A round that is in the table.

    Attributes:
        version: The table's version after it; that before it if there was nothing to add.
        rows: Rows added; `errors` of them hold values that could not be decoded.
        backlog: Offsets that were there and that later rounds have to read.
    """

    topic: str
    table: str
    version: int
    plan: RoundPlan
    rows: int = 0
    errors: int = 0
    files: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the table was as far as the log already."""
        return self.plan.is_empty


class TopicArchive:
    """One archive, from `open` to `close`; rounds are run by one thread at a time.

    Invariant: an archive has one driver. `open` takes a lock that the brokers keep, and each commit confirms it.
    """

    def __init__(
        self,
        spec: TopicArchiveSpec,
        brokers: Brokers,
        files: FileSystem,
        *,
        is_stopped: Callable[[], bool] = lambda: False,
        on_wait: Callable[[LockHeldError], None] | None = None,
    ) -> None:
        self.spec = spec
        self._brokers = brokers
        self._files = files
        self._is_stopped = is_stopped
        self._on_wait = on_wait
        self._lock: BrokerLock | None = None
        self._topic_id = ""
        self._counted = (0, 0)

    def open(self, wait_s: float = 0.0) -> None:
        """Look at the topic, and become its archive's driver. Needs no Spark.

        Raises ArchiveError, ArchiveFailed, LockHeldError, LockUnavailableError and FileSystemError.
        """
        topic = self.spec.topic
        log = self._log()
        if not log.topic_id:
            raise ArchiveError(
                f"topic {topic} has no id: an archive needs brokers with topic ids (Kafka 2.8 and later)"
            )
        self._topic_id = log.topic_id
        lock = BrokerLock(
            client_of(self._brokers),
            f"{LOCK_PREFIX}{log.topic_id}",
            f"the archive of {topic}",
            Owner.here(f"archive of {topic}"),
        )
        try:
            lock.acquire(wait_s, self._on_wait, self._is_stopped)
            # Records that an earlier driver left to Spark: nobody reads them any more.
            self._files.delete(join(self.spec.table, UNDECODED))
        except BaseException:
            lock.release()
            raise
        self._lock = lock

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _log(self) -> LogState:
        start = self.spec.start
        times = [start.time_ms] if start.kind is PositionKind.TIME else []
        try:
            return log_state(self._brokers, self.spec.topic, times)
        except LoadError as error:
            raise ArchiveError(str(error)) from None
        except LoadFailed as error:
            raise ArchiveFailed(str(error)) from None

    # -- a round -------------------------------------------------------------------------------------------------------

    def run_round(self, spark: SparkSession, known: Callable[[], KnownColumns]) -> RoundOutcome:
        """Add what the topic has, as far as a round goes. `spark` is a session of this archive's own.

        `known` finds the topic's columns. Raises what `open` does, LockLostError, and Spark's errors; then nothing of
        the round is in the table.
        """
        spec = self.spec
        columns_known = known()
        if spec.raw and is_raw(columns_known, spec.topic):
            raise ArchiveError(f"the values of {spec.topic} are raw: the column value has their bytes, leave out `raw`")
        schema = table_columns(spark, columns_known, spec.topic, keeps_value=spec.raw, headers=spec.headers)
        table = ArchiveTable(spec.table, spec.topic, self._topic_id, self._files)
        found = table.snapshot(spark, schema, merge_schema=spec.merge_schema)
        plan = self._plan(found.state)
        if plan.is_empty:
            return RoundOutcome(spec.topic, spec.table, found.version, plan)
        round_name = uuid.uuid4().hex
        try:
            return self._add(spark, columns_known, schema, table, found, plan, round_name)
        finally:
            self._files.delete(join(spec.table, UNDECODED, round_name))

    def _plan(self, state: ArchiveState) -> RoundPlan:
        log = self._log()
        self._require_topic(log.topic_id)
        begin = self._begin(log)
        size = bytes_per_offset(self._brokers, log.topic, _missing(state, log)) or BYTES_PER_OFFSET
        offsets_max = max(int(self.spec.round_bytes / size), 1)
        return plan_round(state, log, begin, on_gap=self.spec.on_gap, offsets_max=offsets_max)

    def _require_topic(self, topic_id: str) -> None:
        if topic_id != self._topic_id:
            raise ArchiveError(
                f"topic {self.spec.topic} was deleted and made anew (id {topic_id}, before {self._topic_id}): its "
                "archive needs another table"
            )

    def _begin(self, log: LogState) -> dict[int, int]:
        """Where a new archive begins."""
        start = self.spec.start
        if start.kind is PositionKind.LATEST:
            return dict(log.end)
        if start.kind is PositionKind.TIME:
            return dict(log.at[start.time_ms])
        if start.kind is PositionKind.OFFSETS:
            said = {
                p: start.offset if start.offset is not None else start.offsets.get(p, log.first[p]) for p in log.end
            }
            return {p: min(max(offset, log.first[p]), log.end[p]) for p, offset in said.items()}
        return dict(log.first)

    def _add(
        self,
        spark: SparkSession,
        known: KnownColumns,
        schema: StructType,
        table: ArchiveTable,
        found: TableSnapshot,
        plan: RoundPlan,
        round_name: str,
    ) -> RoundOutcome:
        rows = arrow_rows(known, self.spec.topic, schema, keeps_value=self.spec.raw)
        if found.writer_reason or found.lacks:
            # Spark writes all of it: Delta's writer does what the table asks for, and adds new columns.
            rows = ArrowRows(ValueKind.SPARK, rows.schema)
        written = self._write(spark, rows, plan, found, round_name)
        frame, count_frame = self._decoded(spark, known, [each for each in written if each.undecoded])
        added = [each.add for each in written if each.add]

        def counts() -> tuple[int, int]:
            in_frame, errors = count_frame()
            if errors and self.spec.on_error == "suspend":
                raise ArchiveError(
                    f"{errors:,} values of {self.spec.topic} between {_described(plan)} cannot be decoded: on_error: "
                    "suspend stops before them; `headwater consume` shows them"
                )
            self._counted = total(written)[0] + in_frame, errors
            return self._counted

        version = table.commit(spark, found, plan, added, frame, counts, self._before_commit)
        row_count, errors = self._counted
        return RoundOutcome(self.spec.topic, self.spec.table, version, plan, row_count, errors, len(added))

    def _write(
        self, spark: SparkSession, rows: ArrowRows, plan: RoundPlan, found: TableSnapshot, round_name: str
    ) -> list[WrittenRange]:
        topic = self.spec.topic
        if not plan.ranges:
            return []
        given = {
            **connection_options(self._brokers),
            "subscribe": topic,
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
        }
        if rows.fields is not None:
            from headwater.pipelines.datasource import JSON_FIELDS_OPTION

            given[JSON_FIELDS_OPTION] = rows.fields.text()
        options = ReadOptions.parse(given)
        ranges = {partition: (part,) for partition, part in plan.ranges.items()}
        size = bytes_per_offset(self._brokers, topic, ranges)
        task_rows = rows_per_task(ranges, size, spark.sparkContext.defaultParallelism)
        split = dataclasses.replace(
            options, records_per_partition_max=task_rows, records_per_task_min=max(task_rows // 2, 1)
        )
        topic_id = uuid.UUID(self._topic_id)
        tasks: list[RangePartition] = plan_tasks(
            [OffsetRange(topic, partition, *part, topic_id) for partition, part in plan.ranges.items()], split
        )
        writer = RangeWriter(self.spec.table, self._files, rows, options, round_name, found.indexed_columns)
        job = spark.sparkContext.parallelize(tasks, len(tasks)).mapPartitions(write_ranges(writer))
        return list(job.collect())

    def _decoded(
        self, spark: SparkSession, known: KnownColumns, left: list[WrittenRange]
    ) -> tuple[DataFrame | None, Callable[[], tuple[int, int]]]:
        """The rows of records that tasks have left to Spark, and a function that counts them once they are written."""
        if not left:
            return None, lambda: (0, 0)
        records = read_records(spark, [each.undecoded for each in left])
        decoded = rows_of(
            records,
            known,
            self.spec.topic,
            keeps_value=self.spec.raw,
            headers=self.spec.headers,
            with_headers=any(each.has_headers for each in left),
        )
        ordered = decoded.sortWithinPartitions(columns.PARTITION, columns.OFFSET)
        observed, counts = counted(ordered)
        return observed, lambda: counts()[:2]

    def _before_commit(self) -> None:
        """The last moment before the commit: still this driver's turn, and still the same topic."""
        if self._is_stopped():
            raise ArchiveFailed("stopped before the commit: nothing was added")
        assert self._lock is not None, "open comes first"
        topic = self.spec.topic
        try:
            with ClusterClient(client_of(self._brokers)) as cluster:
                cluster.retry(f"topic {topic}", lambda: cluster.partitions(topic))
                topic_id = str(cluster.topic_id(topic))
        except ClientError as error:
            raise ArchiveFailed(f"topic {topic} cannot be asked before the commit: {error}") from error
        self._require_topic(topic_id)
        self._lock.confirm()


def _missing(state: ArchiveState, log: LogState) -> dict[int, tuple[tuple[int, int], ...]]:
    """What the table lacks of the log, to look at the size of its records."""
    found = {p: (max(state.ends.get(p, 0), log.first[p]), end) for p, end in log.end.items()}
    return {p: (part,) for p, part in found.items()}


def _described(plan: RoundPlan) -> str:
    return ", ".join(f"{partition}:{start}-{end - 1}" for partition, (start, end) in sorted(plan.ranges.items())[:3])
