"""Runs the archives of several topics in one Spark session: side by side, each for itself, none stopping another.

Which archives there are may change while they run: `listed` is asked again and again. An archive that is declared
otherwise, or no more, ends when nothing of it runs; only then its successor begins, because both have one lock.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, ParamSpec

from headwater.logtier.client.cluster import ClientConfig, ClusterClient
from headwater.logtier.client.errors import ClientError
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.archive_round import RoundOutcome
from headwater.pipelines.archive.archived_columns import archived_columns, columns_may_change
from headwater.pipelines.archive.configured import KnownArchives
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed, naming_table
from headwater.pipelines.archive.log_ends import LogEnds
from headwater.pipelines.archive.maintenance import Upkeep, compact, files_saved, vacuum, vacuumed_s
from headwater.pipelines.archive.metrics import TopicCounts
from headwater.pipelines.archive.schedule import LONG_AT_ONCE, TopicProgress, due, to_open
from headwater.pipelines.archive.topic_archive import BYTES_PER_OFFSET, TopicArchive, TopicMadeAnewError
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import Loaded
from headwater.pipelines.errors import PipelineError
from headwater.pipelines.file_systems.file_system import FileSystem
from headwater.pipelines.loads.failures import failure_reason
from headwater.pipelines.loads.offsets.log_state import client_of
from headwater.pipelines.locks.broker_lock import LockHeldError, LockLostError
from headwater.pipelines.sources.known_columns import KnownColumns
from headwater.pipelines.spark.hadoop_files import spark_files
from headwater.pipelines.spark.importing import import_pyspark
from headwater.pipelines.spark.session import SessionError, lost_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ArchiveRun", "RoundFailure"]

log = logging.getLogger(__name__)

_P = ParamSpec("_P")

#: Rounds that run at a time: a small one is mostly waiting, and Spark shares its cores between their jobs.
AT_ONCE: Final = 4
#: Archives that are opened at a time: each waits some seconds for its lock (KIP-134).
OPENED_AT_ONCE: Final = 24
LOOK_S: Final = 1.0
#: Another driver may end at any time.
HELD_S: Final = 15.0
#: Between two questions which archives there are.
LIST_S: Final = 10.0
#: Between two attempts at a table's maintenance without a round of it.
UPKEEP_AGAIN_S: Final = 3_600.0
#: How long the status of an archive that has ended is shown: its writer looks once a second.
ENDED_S: Final = 5.0
#: Of one question about the logs' ends, or of a group's commit.
LOOK_TIMEOUT_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class RoundFailure:
    """A round that failed. `is_user_error`: it fails again unless topic, table or declaration change.

    `retry_s` is the time until it is tried again, None if it is not.
    """

    topic: str
    table: str
    error: str
    is_user_error: bool
    retry_s: float | None = None


@dataclass(slots=True, eq=False)
class _Topic:
    """One topic's archive in a run."""

    archive: TopicArchive
    progress: TopicProgress
    counts: TopicCounts
    upkeep: Upkeep
    loaded: Loaded
    ending: threading.Event
    session: SparkSession | None = None
    columns: KnownColumns | None = None

    @property
    def name(self) -> str:
        return self.archive.spec.topic

    def is_over(self, stop: threading.Event) -> bool:
        """Whether the run stops, or the archive ends."""
        return stop.is_set() or self.ending.is_set()

    @property
    def is_busy(self) -> bool:
        """Whether something of it runs in another thread."""
        return self.progress.is_running or self.progress.is_opening or self.progress.is_maintained

    def wants_upkeep(self, now_s: float) -> bool:
        """Whether its table is to be compacted or vacuumed, and nothing else runs. Only after a round that ended well:
        what is wrong with a table keeps it from being maintained, too.
        """
        progress, upkeep = self.progress, self.upkeep
        is_idle = progress.is_open and not self.is_busy and not self.ending.is_set()
        is_sound = self.session is not None and progress.archived >= 0 and not progress.failures
        # Not again and again, whatever comes of it: rounds wait meanwhile.
        is_news = progress.began_s > upkeep.began_s or now_s - upkeep.began_s >= UPKEEP_AGAIN_S
        return is_idle and is_sound and is_news and self.archive.spec.maintenance and upkeep.is_due(now_s)

    def is_as(self, spec: TopicArchiveSpec | None, loaded: Loaded) -> bool:
        """Whether the archive is declared as it runs."""
        values = (each.pipeline.topics.get(self.name) for each in (self.loaded, loaded))
        return spec == self.archive.spec and next(values) == next(values)


class ArchiveRun:
    """The archives of one driver.

    Args:
        files: The file system of a table; its FileSystemError is that of the one archive.
        listed: Asked by `run`, in a thread of its own, which archives there are now, with the topics of those that run;
            raises ArchiveFailed. Without it they stay.
        on_round, on_failure: Called in some thread, for each round that added something, and each that failed.
        on_end: Called when no round runs any more, before another driver can have the locks.

    What a callback raises is logged: a full disk or a closed pipe behind it stops no archive.
    """

    def __init__(
        self,
        specs: Sequence[TopicArchiveSpec],
        loaded: Loaded,
        brokers: Brokers,
        files: Callable[[str], FileSystem],
        *,
        listed: Callable[[Collection[str]], KnownArchives] | None = None,
        on_round: Callable[[RoundOutcome], None] = lambda _: None,
        on_failure: Callable[[RoundFailure], None] = lambda _: None,
        on_end: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loaded = loaded
        self._brokers = brokers
        self._on_round = _guarded(on_round, "a round that has ended")
        self._on_failure = _guarded(on_failure, "a round that has failed")
        self._on_end = _guarded(on_end, "the end of the archives")
        self._clock = clock
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._spark: SparkSession | None = None
        self._tag = f"headwater-archive-{uuid.uuid4().hex}"
        #: Of the schedule, which rounds, openings and looks change in threads of their own.
        self._turn = threading.Lock()
        self._files = files
        self._listed = listed
        self._known = KnownArchives(tuple(specs), loaded)
        self._ended: list[TopicCounts] = []
        self._refused: dict[str, TopicCounts] = {}
        #: Replaced, never changed: other threads go through it.
        self._topics = [self._made(each, loaded) for each in specs]

    def _made(self, spec: TopicArchiveSpec, loaded: Loaded) -> _Topic:
        ending = threading.Event()
        return _Topic(
            TopicArchive(
                spec,
                self._brokers,
                self._files,
                is_stopped=lambda: self._stop.is_set() or ending.is_set(),
            ),
            TopicProgress(spec.freshness_ms / 1000, max(spec.round_bytes // BYTES_PER_OFFSET, 1)),
            TopicCounts(spec.topic, spec.table),
            Upkeep(),
            loaded,
            ending,
        )

    def stop(self) -> None:
        """Let no round be committed any more, and end their jobs. May be called from another thread."""
        self._stop.set()
        self._wake.set()
        if self._spark is not None and lost_jvm() is None:
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def counts(self) -> list[TopicCounts]:
        """What each archive has done, and where it is now: a copy.

        Those that cannot be are failing; those that have ended are there for a moment, for their last status.
        """
        now_s = self._clock()
        with self._turn:
            for each in self._topics:
                progress = each.progress
                if progress.pending_s is not None:
                    each.counts.waiting_s = now_s - progress.pending_s
                else:
                    each.counts.waiting_s = 0.0 if progress.archived >= 0 else None
                if progress.archived >= 0:
                    each.counts.behind = max(progress.ends - progress.archived, 0)
                    each.counts.held_bytes = each.archive.held_bytes(progress.ends)
            own = {each.name: each.counts for each in self._topics if not each.counts.is_ended}
            ended = {each.topic: each for each in self._ended}
            return [dataclasses.replace(each) for each in (self._refused | ended | own).values()]

    def run_once(self, start_spark: Callable[[], SparkSession]) -> list[RoundFailure]:
        """Let every table catch up with its topic as it is now; return the failures. Raises SessionError."""
        import_pyspark()
        opening, running = self._pools(AT_ONCE)
        try:
            opened = [opening.submit(each.archive.open) for each in self._topics]
            self._spark = start_spark()
            rounds = [
                running.submit(self._catch_up, topic, lock.result)
                for topic, lock in zip(self._topics, opened, strict=True)
            ]
            failures = [failure for each in rounds if (failure := each.result()) is not None]
            failed = {each.topic for each in failures}
            for topic in self._topics:
                if topic.name not in failed and topic.archive.spec.maintenance:
                    running.submit(self._maintain, topic).result()
            return failures
        except BaseException:
            self.stop()
            raise
        finally:
            self._end(opening, running)

    def run(self, start_spark: Callable[[], SparkSession]) -> None:
        """Keep every table as fresh as it is declared, until `stop`. Raises SessionError, also when Spark has ended."""
        import_pyspark()
        opening, running = self._pools(AT_ONCE + LONG_AT_ONCE)
        upkeep = ThreadPoolExecutor(1, "upkeep")
        threads = [
            threading.Thread(target=self._keep_looking, name="archive-look", daemon=True),
            threading.Thread(target=self._keep_committing, name="archive-group", daemon=True),
        ]
        if self._listed is not None:
            more = (self._listed,)
            threads.append(threading.Thread(target=self._keep_listing, args=more, name="archive-list", daemon=True))
        try:
            self._spark = start_spark()
            for each in threads:
                each.start()
            while not self._stop.is_set():
                ended = lost_jvm()
                if ended is not None:
                    raise SessionError(ended)  # another driver may take the locks
                now_s = self._clock()
                with self._turn:
                    self._settle(opening)
                    topics = {id(each.progress): each for each in self._topics}
                    going = [each.progress for each in self._topics if not each.ending.is_set()]
                    busy = [each.progress for each in self._topics if each.ending.is_set()]
                    opened_at_once = OPENED_AT_ONCE - sum(each.is_opening for each in busy)
                    for place in to_open(going, now_s, opened_at_once):
                        place.is_opening = True
                        opening.submit(self._open, topics[id(place)])
                    # Before rounds: those of an archive that is far behind follow each other at once.
                    if topic := self._to_maintain(now_s):
                        topic.progress.is_maintained, topic.upkeep.began_s = True, now_s
                        upkeep.submit(self._upkeep, topic)
                    for place in due(going, now_s, AT_ONCE, busy):
                        place.began(now_s)
                        running.submit(self._round, topics[id(place)])
                self._wake.wait(LOOK_S)
                self._wake.clear()
        except BaseException:
            self.stop()
            raise
        finally:
            self._stop.set()
            for each in threads:
                if each.is_alive():
                    each.join()
            self._end(opening, running, upkeep)

    # -- parts ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def _pools(rounds: int) -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
        return ThreadPoolExecutor(OPENED_AT_ONCE, "open"), ThreadPoolExecutor(rounds, "archive")

    def _end(self, *pools: ThreadPoolExecutor) -> None:
        """Wait for what runs, then give the locks back: none is free while a round may still commit."""
        for pool in pools:
            pool.shutdown(wait=True, cancel_futures=True)
        self._on_end()
        for topic in self._topics:
            self._give_back(topic)

    @staticmethod
    def _give_back(topic: _Topic) -> None:
        """Give an archive's lock back, if the brokers can be told: else they forget it."""
        try:
            topic.archive.close()
        except Exception as error:  # noqa: BLE001 - others' locks and rounds do not depend on it
            log.warning("the lock of the archive of %s was not given back: %s", topic.name, error)

    def _settle(self, opening: ThreadPoolExecutor) -> None:
        """End archives that are declared otherwise or no more, and begin those that are new. With `_turn`."""
        wanted = {each.topic: each for each in self._known.specs}
        going: list[_Topic] = []
        for topic in self._topics:
            if not topic.ending.is_set() and not topic.is_as(wanted.get(topic.name), self._known.loaded):
                topic.ending.set()
            if not topic.ending.is_set() or topic.is_busy:
                going.append(topic)
            elif topic.archive.has_lock:
                going.append(topic)
                topic.progress.is_opening = True
                opening.submit(self._close, topic)
        present = {each.name for each in going}
        begin = [self._made(each, self._known.loaded) for each in wanted.values() if each.topic not in present]
        self._topics = [*going, *begin]
        names = {each.name for each in self._topics if not each.ending.is_set()}
        now_s = time.time()
        self._ended = [each for each in self._ended if each.topic not in names and now_s - each.since_s < ENDED_S]

    def _close(self, topic: _Topic) -> None:
        """Give the lock of an archive back that has ended."""
        self._give_back(topic)
        with self._turn:
            topic.progress.lost()
            topic.counts.is_ended, topic.counts.since_s = True, time.time()
            # Its last numbers, until they are shown.
            self._ended.append(
                dataclasses.replace(topic.counts, is_failing=False, error="", waiting_s=None, behind=None, held_bytes=0)
            )
        self._wake.set()

    def _keep_listing(self, listed: Callable[[Collection[str]], KnownArchives]) -> None:
        """Ask which archives there are, again and again. An answer that does not come changes nothing."""
        is_news = True
        while not self._stop.is_set():
            try:
                self._adopt(listed([each.name for each in self._topics if not each.ending.is_set()]))
            except Exception as error:  # noqa: BLE001 - the archives that are known go on
                if not self._stop.is_set():
                    log.log(logging.WARNING if is_news else logging.DEBUG, "the archives stay as they are: %s", error)
                is_news = False
            else:
                is_news = True
            self._stop.wait(LIST_S)

    def _adopt(self, found: KnownArchives) -> None:
        with self._turn:
            before = self._refused
            self._refused = {}
            news: list[RoundFailure] = []
            for topic, refusal in found.refused.items():
                counts = before.get(topic, TopicCounts(topic))
                if counts.error != refusal.reason:
                    counts.failed(refusal.reason, time.time(), is_own=False)
                    news.append(RoundFailure(topic, "", refusal.reason, refusal.is_user_error))
                self._refused[topic] = counts
            self._known = found
        self._wake.set()
        for each in news:
            self._on_failure(each)

    def _open(self, topic: _Topic) -> None:
        try:
            topic.archive.open()
        except Exception as error:  # noqa: BLE001 - one archive's failure is its own
            self._failed(topic, error, HELD_S if isinstance(error, LockHeldError) else None)
            return
        with self._turn:
            topic.progress.opened()
            topic.counts.ended_well(time.time())
        self._wake.set()

    def _catch_up(self, topic: _Topic, opened: Callable[[], None]) -> RoundFailure | None:
        """Run rounds until the table is where the log's end was at the first one."""
        goal: int | None = None
        try:
            opened()
            while True:
                outcome = self._run_round(topic)
                self._succeeded(topic, outcome)
                with self._turn:
                    topic.counts.behind = outcome.plan.backlog
                if not outcome.is_empty:
                    self._on_round(outcome)
                archived = sum(outcome.archived.values())
                if goal is None:
                    goal = archived + outcome.plan.backlog
                if archived >= goal or not outcome.plan.backlog:
                    with ClusterClient(client_of(self._brokers)) as cluster:
                        topic.archive.commit_group(cluster)
                    return None
        except Exception as error:  # noqa: BLE001 - one archive's failure is its outcome
            failure = self._failure(topic, error, None)
            with self._turn:
                topic.counts.failed(failure.error, time.time(), is_own=topic.archive.has_lock)
            return failure

    def _round(self, topic: _Topic) -> None:
        try:
            outcome = self._run_round(topic)
        except Exception as error:  # noqa: BLE001 - one archive's failure is its own
            self._failed(topic, error)
            return
        self._succeeded(topic, outcome)
        if not outcome.is_empty:
            self._on_round(outcome)
        with self._turn:
            topic.progress.succeeded(sum(outcome.archived.values()), outcome.plan.backlog)
        self._wake.set()

    def _succeeded(self, topic: _Topic, outcome: RoundOutcome) -> None:
        now_s = time.time()
        with self._turn:
            topic.counts.ended_well(now_s)
            topic.counts.table_version = outcome.version
            if not outcome.is_empty:
                topic.counts.rows += outcome.rows
                topic.counts.errors += outcome.errors
                topic.counts.files += outcome.files
                topic.counts.commits += 1
                topic.counts.committed_s = now_s
                topic.upkeep.added(outcome.files)

    def _to_maintain(self, now_s: float) -> _Topic | None:
        """The table whose turn it is: one at a time, in a thread of its own, so that no round's place is taken."""
        if any(each.progress.is_maintained for each in self._topics):
            return None
        waiting = [each for each in self._topics if each.wants_upkeep(now_s)]
        return min(waiting, key=lambda each: each.upkeep.began_s, default=None)

    def _upkeep(self, topic: _Topic) -> None:
        try:
            self._maintain(topic)
        finally:
            with self._turn:
                topic.progress.is_maintained = False
            self._wake.set()

    def _maintain(self, topic: _Topic) -> None:
        """Compact and vacuum a table when it is time. What fails is tried again later: the table is as good without."""
        upkeep, table, session = topic.upkeep, topic.archive.spec.table, topic.session
        is_over = functools.partial(topic.is_over, self._stop)
        if session is None or is_over():
            return
        try:
            session.sparkContext.addJobTag(self._tag)
            if not upkeep.is_known:
                now_s = time.time()
                upkeep.looked(0, self._clock())  # what cannot be looked at is not looked at again and again
                ago_s = now_s - vacuumed_s(spark_files(session, table), table, topic.name, now_s)
                upkeep.looked(files_saved(session, table), self._clock() - ago_s)
            if upkeep.is_compaction_due and not is_over():
                upkeep.compacted()
                compact(session, table, is_over, topic.archive.confirm)
            if upkeep.is_vacuum_due(self._clock()) and not is_over():
                upkeep.vacuumed(self._clock())
                topic.archive.confirm()
                vacuum(session, table, is_over)
        except Exception as error:  # noqa: BLE001 - no round depends on it
            if not is_over():
                log.warning(
                    "%s was not maintained: %s",
                    table,
                    self._loaded.redacted(failure_reason(error, ArchiveError, ArchiveFailed)),
                )

    def _run_round(self, topic: _Topic) -> RoundOutcome:
        if topic.is_over(self._stop):
            raise ArchiveFailed("stopped before it began")
        assert self._spark is not None
        if topic.session is None:
            topic.session = self._spark.newSession()
        session = topic.session
        session.sparkContext.addJobTag(self._tag)
        return topic.archive.run_round(session, lambda: self._columns(session, topic))

    def _columns(self, session: SparkSession, topic: _Topic) -> KnownColumns:
        """The columns of a topic."""
        if topic.columns is None or columns_may_change(topic.loaded, topic.name):
            topic.columns = archived_columns(session, topic.loaded, topic.name, self._brokers)
        return topic.columns

    def _keep_looking(self) -> None:
        """Ask for the ends of all logs, again and again."""
        ends = LogEnds(LOOK_TIMEOUT_MS / 1000, self._clock)
        level = logging.WARNING
        with ClusterClient(self._brief_client()) as cluster:
            while not self._stop.wait(LOOK_S):
                try:
                    self._seen(ends.ask(cluster, {each.name for each in self._topics}))
                    level = logging.WARNING
                except ClientError as error:
                    log.debug("the ends of the logs are not known at present: %s", error)
                except Exception as error:  # noqa: BLE001 - without looks, no archive would see new records
                    log.log(level, "the ends of the logs were not asked for: %s", failure_reason(error))
                    level = logging.DEBUG
                    cluster.close()  # nobody knows what is left on its connections

    def _seen(self, ends: Mapping[str, int]) -> None:
        now_s = self._clock()
        with self._turn:
            for topic in self._topics:
                if topic.name in ends:
                    topic.progress.seen(ends[topic.name], now_s)
        self._wake.set()

    def _keep_committing(self) -> None:
        """Let the archives' groups follow their tables. Not by the thread that looks: coordinators may be away."""
        told: set[str] = set()
        with ClusterClient(self._brief_client()) as cluster:
            while not self._stop.wait(LOOK_S):
                for topic in self._topics:
                    if self._stop.is_set() or not topic.progress.is_open:
                        continue
                    try:
                        topic.archive.commit_group(cluster)
                        told.discard(topic.name)
                    except Exception as error:  # noqa: BLE001 - one archive's failure is its own
                        level = logging.DEBUG if topic.name in told else logging.WARNING
                        log.log(level, "the group of the archive of %s: %s", topic.name, failure_reason(error))
                        told.add(topic.name)
                        cluster.close()

    def _brief_client(self) -> ClientConfig:
        return dataclasses.replace(
            client_of(self._brokers), api_timeout_ms=LOOK_TIMEOUT_MS, request_timeout_ms=LOOK_TIMEOUT_MS
        )

    def _failed(self, topic: _Topic, error: Exception, wait_s: float | None = None) -> None:
        topic.columns = None
        if isinstance(error, LockLostError):
            self._give_back(topic)
        with self._turn:
            if isinstance(error, LockLostError):
                topic.progress.lost()
            if isinstance(error, TopicMadeAnewError):
                topic.progress.forget()
                topic.counts.behind, topic.counts.table_version, topic.upkeep = None, -1, Upkeep()
            topic.progress.is_elsewhere = False
            if isinstance(error, LockHeldError):
                topic.progress.held()
                topic.counts.behind, topic.counts.held_bytes = None, 0
            retry_s = topic.progress.failed(self._clock(), wait_s)
            failure = self._failure(topic, error, retry_s)
            if not topic.is_over(self._stop):
                topic.counts.failed(failure.error, time.time(), is_own=topic.archive.has_lock)
            # Another driver's archive is reported once.
            is_news = not isinstance(error, LockHeldError) or topic.progress.failures == 1
        if is_news and not topic.is_over(self._stop):
            self._on_failure(failure)

    def _failure(self, topic: _Topic, error: Exception, retry_s: float | None) -> RoundFailure:
        spec = topic.archive.spec
        is_user_error = isinstance(error, ArchiveError | PipelineError)
        said = failure_reason(error, ArchiveError, ArchiveFailed)
        reason = topic.loaded.redacted(naming_table(said, spec.table))
        if is_user_error and spec.configs:
            reason = f"{reason} (the topic's configs: {spec.configs})"
        return RoundFailure(spec.topic, spec.table, reason, is_user_error, retry_s)


def _guarded(callback: Callable[_P, None], what: str) -> Callable[_P, None]:
    """A callback that raises nothing. Of errors one after the other the first is a warning."""
    level = logging.WARNING

    def call(*args: _P.args, **kwargs: _P.kwargs) -> None:
        nonlocal level
        try:
            callback(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whoever listens decides nothing about archives
            log.log(level, "%s could not be shown: %s: %s", what, type(error).__name__, error)
            level = logging.DEBUG
        else:
            level = logging.WARNING

    return call
