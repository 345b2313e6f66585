"""The archive of one topic: its lock, and what its rounds add."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.errors import ClientError
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.archive_group import ArchiveGroup
from headwater.pipelines.archive.archive_round import ArchiveRound, RoundOutcome
from headwater.pipelines.archive.archive_table import ArchiveTable, TableSnapshot
from headwater.pipelines.archive.earlier_rounds import EarlierRounds
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.archive.file_writing import UNDECODED
from headwater.pipelines.archive.marks import ArchiveState
from headwater.pipelines.archive.round_plan import RoundPlan, plan_round
from headwater.pipelines.archive.rows import is_raw, table_columns
from headwater.pipelines.archive.table_modes import mode_of_new_table
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.file_systems.file_system import FileSystem, FileSystemError, UnavailableError, join
from headwater.pipelines.loads.errors import LoadError, LoadFailed
from headwater.pipelines.loads.offsets.log_state import bytes_per_offset, client_of, log_state
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.positions import PositionKind
from headwater.pipelines.locks.broker_lock import BrokerLock, LockLostError
from headwater.pipelines.locks.owner import Owner
from headwater.pipelines.spark import jvm_delta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["BYTES_PER_OFFSET", "TopicArchive", "TopicMadeAnewError", "begin_offsets", "topic_log"]

log = logging.getLogger(__name__)

LOCK_PREFIX: Final = "headwater.archive."
#: A round does not wait longer for its group's coordinator: the offsets are committed later.
GROUP_TIMEOUT_MS: Final = 5_000
#: Where the size of records is not known: a small one.
BYTES_PER_OFFSET: Final = 100
#: Of a round, however small the records seem: a compacted log may hold few bytes at its beginning.
ROUND_OFFSETS_MAX: Final = 50_000_000


class TopicMadeAnewError(LockLostError):
    """The topic was deleted and made again: what this driver has is the archive of the former, and its lock."""


class TopicArchive:
    """One archive, from `open` to `close`; rounds are run by one thread at a time.

    Invariant: an archive has one driver. `open` takes a lock that the brokers keep, and each commit confirms it.

    `file_system` finds that of the table. Only `open` asks it: who declares one topic's table must not be able to keep
    the other archives waiting, or to end them.
    """

    def __init__(
        self,
        spec: TopicArchiveSpec,
        brokers: Brokers,
        file_system: Callable[[str], FileSystem],
        *,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.spec = spec
        self._brokers = brokers
        self._file_system = file_system
        self._found: FileSystem | None = None
        self._is_stopped = is_stopped
        self._lock: BrokerLock | None = None
        self._topic_id = ""
        self._begin: dict[int, int] | None = None
        self._group = ArchiveGroup(spec.topic, spec.view_grace_ms / 1000)
        #: Whether the group knows of the table as it was when this driver began.
        self._is_known = False
        self._earlier = EarlierRounds(time.monotonic)
        self._bytes_per_offset: float | None = None

    def open(self) -> None:
        """Look at the topic, and become its archive's driver. Needs no Spark.

        Raises ArchiveError, ArchiveFailed, LockHeldError, LockUnavailableError and FileSystemError.
        """
        topic = self.spec.topic
        if self._found is None:
            try:
                self._found = self._file_system(self.spec.table)
            except UnavailableError:
                raise
            except FileSystemError as error:
                raise ArchiveError(str(error)) from None
        known = topic_log(self._brokers, self.spec)
        if not known.topic_id:
            raise ArchiveError(
                f"topic {topic} has no id: an archive needs brokers with topic ids (Kafka 2.8 and later)"
            )
        if known.topic_id != self._topic_id:
            self._topic_id, self._begin, self._bytes_per_offset = known.topic_id, None, None
        self._group.of_topic(known.topic_id)
        self._is_known = False
        lock = BrokerLock(
            client_of(self._brokers),
            f"{LOCK_PREFIX}{known.topic_id}",
            f"the archive of {topic}",
            Owner.here(f"archive of {topic}"),
        )
        try:
            lock.acquire(is_stopped=self._is_stopped)
            self._clean()
        except BaseException:
            lock.release()
            raise
        self._lock = lock

    @property
    def _files(self) -> FileSystem:
        assert self._found is not None, "open comes first"
        return self._found

    def _clean(self) -> None:
        """Remove records that an earlier driver left to Spark: nobody reads them any more."""
        try:
            self._files.delete(join(self.spec.table, UNDECODED))
        except FileSystemError as error:
            log.warning("records of an earlier round were not deleted: %s", error)

    @property
    def has_lock(self) -> bool:
        """Whether this is the archive's driver, as far as it knows."""
        return self._lock is not None

    def close(self) -> None:
        """Give the lock back. No round is running any more."""
        self._group.forget()  # the archive that follows may begin before what this one had
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    # -- a round -------------------------------------------------------------------------------------------------------

    def run_round(self, spark: SparkSession, known: Callable[[], KnownColumns]) -> RoundOutcome:
        """Add what the topic has, as far as a round goes. `spark` is a session of this archive's own.

        `known` finds the topic's columns. It is asked after the round's offsets are known, so that a schema that was
        registered for one of them is known, too.

        Raises what `open` does, and Spark's errors; LockLostError, also for a topic that was made anew, when nothing
        may be added any more until the archive is closed and opened again.
        """
        spec = self.spec
        table = ArchiveTable(spec.table, spec.topic, self._topic_id, self._files, self._is_stopped)
        try:
            snapshot = table.snapshot(spark, spec.mode)
        except ArchiveError:
            # The table may be that of the topic's successor: then it is this driver that is of another one.
            self._require_topic(topic_log(self._brokers, spec).topic_id)
            raise
        state = ArchiveState() if snapshot is None else snapshot.state
        if snapshot is not None and not state.ends:
            self._require_empty(snapshot)
        if snapshot is not None and state.ends and not self._is_known:
            # A restart knows of the newest version only.
            self._group.noted(state.ends, snapshot.committed_ms / 1000)
            self._is_known = True
        plan, size = self._plan(state)
        if snapshot is not None and plan.is_empty:
            return RoundOutcome(spec.topic, spec.table, snapshot.version, plan, dict(state.ends))
        columns_known = known()
        if spec.raw and is_raw(columns_known, spec.topic):
            raise ArchiveError(f"the values of {spec.topic} are raw: the column value has their bytes, leave out `raw`")
        schema = table_columns(spark, columns_known, spec.topic, keeps_value=spec.raw, headers=spec.headers)
        if snapshot is None:
            table.create(spark, schema, mode_of_new_table(spec, self._brokers), self._before_commit)
            snapshot = table.snapshot(spark, spec.mode)
            if snapshot is None or snapshot.state.ends:
                raise ArchiveFailed(f"the table {spec.table} was made or removed by another process meanwhile")
        snapshot.check(schema, plan, merge_schema=spec.merge_schema)
        if not snapshot.state.ends:
            self._begin_group(plan)
        adding = ArchiveRound(
            spec,
            self._brokers,
            self._files,
            self._topic_id,
            size,
            spark,
            columns_known,
            schema,
            table,
            snapshot,
            self._earlier,
        )
        self._is_known = False  # until it is known whether a commit has landed
        outcome = adding.add(plan, self._before_commit)
        self._group.noted(outcome.archived, time.time())
        self._is_known = True
        return outcome

    def held_bytes(self, ends: int) -> int:
        """About how many bytes of the log the group has not passed; 0 while that is not known.

        `ends` is the sum of the log's ends.
        """
        passed, size = self._group.passed, self._bytes_per_offset
        return 0 if passed is None or size is None else round(max(ends - sum(passed.values()), 0) * size)

    def commit_group(self, cluster: ClusterClient) -> None:
        """Let the group `headwater.archive.TOPIC` commit what the table had `view_grace` ago, if that is new."""
        self._group.commit(cluster)

    def _begin_group(self, plan: RoundPlan) -> None:
        """Let the group go where a new table begins: retention must not delete what this table still has to read."""
        starts = {partition: plan.ranges.get(partition, (end,))[0] for partition, end in plan.ends.items()}
        client = dataclasses.replace(
            client_of(self._brokers), api_timeout_ms=GROUP_TIMEOUT_MS, request_timeout_ms=GROUP_TIMEOUT_MS
        )
        with ClusterClient(client) as cluster:
            self._group.begin(cluster, starts)

    def _plan(self, state: ArchiveState) -> tuple[RoundPlan, float | None]:
        """The next round, and about how many bytes an offset has in the log, if that is known."""
        found = topic_log(self._brokers, self.spec)
        self._require_topic(found.topic_id)
        if self._begin is None:
            # Where `latest` is does not move from one attempt to the next.
            self._begin = begin_offsets(self.spec, found, is_new=not state.ends)
        begin = {partition: self._begin.get(partition, first) for partition, first in found.first.items()}
        missing = _missing(state, found)
        size = bytes_per_offset(self._brokers, found.topic, missing) if missing else None
        self._bytes_per_offset = size or self._bytes_per_offset
        offsets_max = min(max(int(self.spec.round_bytes / (size or BYTES_PER_OFFSET)), 1), ROUND_OFFSETS_MAX)
        return plan_round(state, found, begin, on_gap=self.spec.on_gap, offsets_max=offsets_max), size

    def _require_empty(self, snapshot: TableSnapshot) -> None:
        """Raise ArchiveError for rows without offsets: all records would be added to them."""
        files = jvm_delta.delta_file_count(snapshot.transaction)
        if files:
            raise ArchiveError(
                f"the table {self.spec.table} has rows ({files:,} files) and no offsets of {self.spec.topic}: a copy "
                "of an archive (CLONE copies no offsets)? Name another table"
            )

    def _require_topic(self, topic_id: str) -> None:
        """Raise TopicMadeAnewError for another id. `open` takes the new one; the table's properties decide then."""
        if topic_id != self._topic_id:
            self._group.forget()
            self._is_known = False
            raise TopicMadeAnewError(
                f"topic {self.spec.topic} was made anew (its id was {self._topic_id} and is {topic_id}): nothing more "
                f"of the former one is added to the table {self.spec.table}; the next attempt begins the new one"
            )

    def confirm(self) -> None:
        """Make sure that this is still the archive's driver. Raises LockLostError and LockUnavailableError."""
        assert self._lock is not None, "open comes first"
        self._lock.confirm()

    def _before_commit(self) -> None:
        """The last moment before a commit: still this driver's turn, and still the same topic."""
        if self._is_stopped():
            raise ArchiveFailed("stopped before the commit: nothing was added")
        topic = self.spec.topic
        try:
            with ClusterClient(client_of(self._brokers)) as cluster:
                cluster.retry(f"topic {topic}", lambda: cluster.partitions(topic))
                topic_id = str(cluster.topic_id(topic))
        except ClientError as error:
            raise ArchiveFailed(f"topic {topic} cannot be asked before the commit: {error}") from error
        self._require_topic(topic_id)
        self.confirm()


def topic_log(brokers: Brokers, spec: TopicArchiveSpec) -> LogState:
    """The topic's log now. Raises ArchiveError for a topic that does not exist, ArchiveFailed if no broker answers."""
    start = spec.start
    try:
        return log_state(brokers, spec.topic, [start.time_ms] if start.kind is PositionKind.TIME else [])
    except LoadError as error:
        raise ArchiveError(str(error)) from None
    except LoadFailed as error:
        raise ArchiveFailed(str(error)) from None


def begin_offsets(spec: TopicArchiveSpec, state: LogState, *, is_new: bool) -> dict[int, int]:
    """Where a new archive begins, by partition. Raises ArchiveError for an offset that the log of a new one lacks."""
    start = spec.start
    if start.kind is PositionKind.LATEST:
        return dict(state.end)
    if start.kind is PositionKind.TIME:
        return dict(state.at[start.time_ms])
    if start.kind is not PositionKind.OFFSETS:
        return dict(state.first)
    said = {p: start.offset if start.offset is not None else start.offsets.get(p, state.first[p]) for p in state.end}
    for partition, offset in said.items():
        first, end = state.first[partition], state.end[partition]
        if is_new and not first <= offset <= end:
            raise ArchiveError(
                f"the archive of {spec.topic} is to begin at offset {offset} of partition {partition}, whose log has "
                f"{first} to {end}: give `from` an offset that it has, or earliest"
            )
    return said


def _missing(state: ArchiveState, found: LogState) -> dict[int, tuple[tuple[int, int], ...]]:
    """What the table lacks of the log, to look at the size of its records."""
    starts = {p: max(state.ends.get(p, 0), first) for p, first in found.first.items()}
    return {p: ((start, found.end[p]),) for p, start in starts.items() if start < found.end[p]}
