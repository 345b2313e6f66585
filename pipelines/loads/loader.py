"""Runs one topic's load: lock, plan, rows, commit.

`prepare` needs no Spark, so that it runs while Spark starts. From then on until `close` the load holds its target's
lock. `run` reads, writes and commits.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.errors import ClientError
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.file_systems.file_system import FileSystem
from headwater.pipelines.loads.errors import LoadError, LoadFailed
from headwater.pipelines.loads.offsets.intervals import bounds_of, neighbours
from headwater.pipelines.loads.offsets.log_state import bytes_per_offset, client_of, log_state
from headwater.pipelines.loads.offsets.planning import LogState, TargetState, decide, default_id, gone_of
from headwater.pipelines.loads.offsets.positions import PositionKind
from headwater.pipelines.loads.offsets.ranges import Range, joined, minus, shared
from headwater.pipelines.loads.request import LoadOutcome, LoadRequest, LoadStatus
from headwater.pipelines.loads.rows import RowsPlan, gathered, load_rows, partition_rows, rows_per_task
from headwater.pipelines.loads.targets.delta_target import DeltaTarget
from headwater.pipelines.loads.targets.file_target import FileTarget
from headwater.pipelines.loads.targets.manifest import LoadPlan, Manifest, TargetDescription, check_id
from headwater.pipelines.loads.targets.records import HIDDEN, LoadRecords
from headwater.pipelines.loads.targets.target import Target, Writing
from headwater.pipelines.locks.broker_lock import BrokerLock, LockHeldError
from headwater.pipelines.locks.owner import Owner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["TopicLoad"]

LOCK_PREFIX: Final = "headwater.load."
_DELTA: Final = "delta"


class TopicLoad:
    """One load; not thread-safe, but `stop` may be called from anywhere."""

    def __init__(
        self,
        request: LoadRequest,
        brokers: Brokers,
        files: FileSystem,
        *,
        on_wait: Callable[[LockHeldError], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.request = request
        self._brokers = brokers
        self._records = LoadRecords(files, request.target)
        self._on_wait = on_wait
        self._clock = clock
        self._lock: BrokerLock | None = None
        self._log: LogState | None = None
        self._stopped = False

    def stop(self) -> None:
        """Let the load commit nothing more."""
        self._stopped = True

    # -- before Spark ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Look at topic and target, and take the target's lock.

        Raises LoadError, LoadFailed, FileSystemError, LockHeldError and LockUnavailableError.
        """
        request = self.request
        for name in (request.id, request.replace):
            if name:
                check_id(name)
        log = log_state(self._brokers, request.topic)
        description = self._described(log)
        lock = BrokerLock(
            client_of(self._brokers),
            f"{LOCK_PREFIX}{description.lock_id}",
            f"the target {request.target}",
            Owner.here(f"load of {request.topic}"),
        )
        try:
            lock.acquire(request.wait_s, self._on_wait, lambda: self._stopped)
            self._settle_description(log)
            # The log is asked again: the wait for another load may have been long.
            self._log = self._asked(log.topic_id)
        except BaseException:
            lock.release()
            raise
        self._lock = lock

    def _asked(self, topic_id: str) -> LogState:
        wanted = self.request.wanted
        times = {each.time_ms for each in (wanted.start, wanted.end) if each.kind is PositionKind.TIME}
        log = log_state(self._brokers, self.request.topic, sorted(times))
        if log.topic_id != topic_id:
            raise LoadFailed(f"topic {log.topic} was made anew while its load began")
        return log

    def _described(self, log: LogState) -> TargetDescription:
        """The target's description, made for a new target. Raises LoadError if it cannot be this load's."""
        request = self.request
        entry = self._records.files.entry(request.target)
        if entry is not None and not entry.is_folder:
            raise LoadError(f"{request.target} is a file: name a folder")
        found = self._records.description()
        if found is None:
            self._require_new()
            found = self._records.describe(self._own_description(uuid.uuid4().hex, log))
        self._require_fit(found, log)
        return found

    def _settle_description(self, log: LogState) -> None:
        """Under the lock: a target in which nothing was loaded yet is this load's, whatever was tried before."""
        found = self._records.description()
        if found is None:
            raise LoadFailed(f"{self.request.target} was removed while its load began")
        self._require_fit(found, log)
        own = self._own_description(found.lock_id, log)
        if found != own:
            self._records.replace_description(own)

    def _own_description(self, lock_id: str, log: LogState) -> TargetDescription:
        request = self.request
        partitions = tuple(f"{each.name} = {each.expression}" for each in request.partitions)
        return TargetDescription(lock_id, request.topic, log.topic_id, request.format, partitions)

    def _require_fit(self, found: TargetDescription, log: LogState) -> None:
        """Raise LoadError if something was loaded under another description than this load's."""
        request = self.request
        own = self._own_description(found.lock_id, log)
        if found == own or not self._records.has_loads():
            return
        if found.topic != own.topic:
            raise LoadError(f"{request.target} holds loads of topic {found.topic}: name another target")
        if found.topic_id != own.topic_id:
            raise LoadError(
                f"{request.target} holds loads of an earlier topic {request.topic} (id {found.topic_id}, now "
                f"{log.topic_id or 'none'}): the topic was made anew, and its offsets mean others; name another target"
            )
        if found.format != own.format:
            raise LoadError(f"{request.target} holds {found.format}: give --format {found.format}, or another target")
        if found.partition_by != own.partition_by:
            had = ", ".join(found.partition_by) or "no partition columns"
            raise LoadError(f"{request.target} has {had}: give the same --partition-by and --timezone")

    def _require_new(self) -> None:
        if self.request.format == _DELTA:
            return  # rows may be added to a table that is there; the target itself looks
        names = [each.name for each in self._records.files.list(self.request.target) if each.name != HIDDEN]
        if names:
            raise LoadError(
                f"{self.request.target} holds something else ({names[0]}): loads need a folder of their own"
            )

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- with Spark --------------------------------------------------------------------------------------------------

    def run(self, spark: SparkSession, known: Callable[[], KnownColumns]) -> LoadOutcome:
        """Load. `known` finds the topic's columns, and is called only if there is something to load.

        `spark` is a session of this load's own: its settings are changed. Raises what `prepare` does, LockLostError,
        and Spark's errors.
        """
        assert self._log is not None, "prepare comes first"
        began = time.monotonic()
        request, log = self.request, self._log
        spark.conf.set("spark.sql.session.timeZone", "UTC")  # in which partition columns are computed
        target: Target = (
            DeltaTarget(self._records, log.topic_id)
            if request.format == _DELTA
            else FileTarget(self._records, request.format)
        )
        loaded = target.refresh(spark)
        replaced = self._replaced() if request.replace else None
        plan = replaced.plan if replaced is not None else self._plan(log, loaded)
        if replaced is None and not minus(plan.covered, loaded.coverage):
            manifest = self._records.manifest(plan.id)
            outcome = LoadStatus.NOTHING_NEW if manifest is None else LoadStatus.ALREADY_LOADED
            return LoadOutcome(request.topic, request.target, outcome, manifest, seconds=time.monotonic() - began)
        if replaced is not None:
            self._require_whole(plan, log)
        manifest = self._write(spark, target, plan, replaced, known())
        return LoadOutcome(request.topic, request.target, LoadStatus.LOADED, manifest, seconds=time.monotonic() - began)

    def _replaced(self) -> Manifest:
        found = self._records.manifest(self.request.replace)
        if found is None:
            raise LoadError(f"{self.request.target} has no load {self.request.replace} that could be replaced")
        return found

    def _require_whole(self, plan: LoadPlan, log: LogState) -> None:
        """Raise LoadError if retention has removed records of a load that is to be replaced."""
        gone = shared(plan.ranges, {partition: ((0, first),) for partition, first in log.first.items()})
        if gone:
            raise LoadError(f"{plan.id} cannot be loaded anew: records of it are gone by retention; it stays as it is")

    def _plan(self, log: LogState, loaded: TargetState) -> LoadPlan:
        """The plan that is written down, for a load that has a name; else what is decided now, written down."""
        request = self.request
        if request.id:
            written = self._records.plan(request.id)
            if written is not None:
                return self._checked(written, log, loaded)
        bounds = self._bounds(log) if request.wanted.is_interval else None
        ranges, gaps = decide(request.wanted, log, loaded, int(self._clock() * 1000), bounds)
        covered = joined(ranges, gaps)
        name = request.id or default_id(request.topic, covered)
        plan = LoadPlan(
            name,
            request.topic,
            log.topic_id,
            ranges,
            gaps,
            (request.wanted.start.text, request.wanted.end.text),
            datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="seconds"),
            bounds or {},
        )
        return self._checked(self._records.write_plan(plan), log, loaded) if covered or request.id else plan

    def _bounds(self, log: LogState) -> dict[int, Range]:
        """An interval's bounds: where its neighbours' loads end and start, else where its times are in the log."""
        start_ms, end_ms = self.request.wanted.start.time_ms, self.request.wanted.end.time_ms
        before, after = (
            # A load that was named so by hand has no bounds.
            [plan.bounds for name in names if (plan := self._records.plan(name)) is not None and plan.bounds]
            for names in neighbours(self._records.planned(), start_ms, end_ms)
        )
        return bounds_of(log, start_ms, end_ms, before, after)

    def _checked(self, written: LoadPlan, log: LogState, loaded: TargetState) -> LoadPlan:
        """A plan that was written down, as far as it can still be carried out. Raises LoadError."""
        if written.topic_id != log.topic_id:
            raise LoadError(
                f"{written.id} was planned for topic {written.topic} (id {written.topic_id}): use another --id"
            )
        rest = minus(written.covered, loaded.coverage)
        if not rest:
            return written
        held = shared(written.covered, loaded.coverage)
        if held and not self.request.wanted.missing:
            raise LoadError(f"other loads have taken offsets of {written.id} meanwhile: --missing loads the rest")
        gone = gone_of(minus(written.ranges, held), log, record=self.request.wanted.record_gaps)
        return dataclasses.replace(
            written,
            ranges=minus(written.ranges, joined(held, gone)),
            gaps=joined(minus(written.gaps, held), gone),
        )

    def _write(
        self, spark: SparkSession, target: Target, plan: LoadPlan, replaced: Manifest | None, known: KnownColumns
    ) -> Manifest:
        request = self.request
        if self._stopped:
            raise LoadFailed("stopped before it began: nothing was added")
        if plan.ranges:
            size = bytes_per_offset(self._brokers, request.topic, plan.ranges)
            tasks = rows_per_task(plan.ranges, size, spark.sparkContext.defaultParallelism)
            rows = load_rows(spark, self._brokers, RowsPlan(request.topic, plan.ranges, tasks, request.headers), known)
        else:  # a gap alone is recorded by a load without rows
            nothing = {partition: ((end, end),) for partition, ((_, end), *_) in plan.gaps.items()}
            rows = load_rows(spark, self._brokers, RowsPlan(request.topic, nothing, 1, request.headers), known)
        rows = gathered(partition_rows(rows, request.partitions), request.partitions)
        return target.write(
            spark,
            Writing(
                plan,
                rows,
                [each.name for each in request.partitions],
                replaced,
                request.merge_schema,
                self._before_commit,
                request.wanted.start.time_ms if request.wanted.is_interval else None,
            ),
        )

    def _before_commit(self) -> None:
        """The last moment before the commit: still asked for, still this driver's turn, still the same topic."""
        if self._stopped:
            raise LoadFailed("stopped before the commit: nothing was added")
        assert self._log is not None
        assert self._lock is not None
        topic = self.request.topic
        try:
            with ClusterClient(client_of(self._brokers)) as cluster:
                cluster.retry(f"topic {topic}", lambda: cluster.partitions(topic))
                topic_id = cluster.topic_id(topic)
        except ClientError as error:
            raise LoadFailed(f"topic {topic} cannot be asked before the commit: {error}") from error
        if self._log.topic_id and str(topic_id) != self._log.topic_id:
            raise LoadFailed(f"topic {topic} was deleted and made anew while it was read: nothing was added")
        self._lock.confirm()
