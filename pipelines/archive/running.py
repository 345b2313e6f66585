"""Runs the archives of several topics in one Spark session: side by side, each for itself, none stopping another."""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headwater.logtier.client.cluster import LATEST, ClusterClient
from headwater.logtier.client.errors import ClientError
from headwater.pipelines.analysis.topic_schemas import find_declared
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.archive.schedule import TopicProgress, due
from headwater.pipelines.archive.topic_archive import BYTES_PER_OFFSET, RoundOutcome, TopicArchive
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import FROM_REGISTRY, Loaded
from headwater.pipelines.errors import PipelineError
from headwater.pipelines.file_systems.file_system import FileSystem, FileSystemError
from headwater.pipelines.loads.offsets.log_state import client_of
from headwater.pipelines.locks.broker_lock import LockHeldError, LockLostError, LockUnavailableError
from headwater.pipelines.sources.known_columns import KnownColumns
from headwater.pipelines.spark.importing import import_pyspark
from headwater.pipelines.spark.session import JVM_LOST_SECONDS_MAX, lost_jvm
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ArchiveRun", "RoundFailure"]

#: Rounds that run at a time: a small one is mostly waiting, and Spark shares its cores between their jobs.
AT_ONCE: Final = 4
#: Archives that are opened at a time: each waits some seconds for its lock (KIP-134).
OPENED_AT_ONCE: Final = 24
LOOK_S: Final = 1.0
#: Columns of a registry's latest schema are asked for again after this time.
COLUMNS_S: Final = 60.0


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
    is_open: bool = False
    session: SparkSession | None = None
    columns: KnownColumns | None = None
    columns_s: float = float("-inf")
    ends: dict[int, int] = field(default_factory=dict)


class ArchiveRun:
    """The archives of one driver.

    Args:
        files: The file system of a table.
        on_round, on_failure: Called in some thread, for each round that added something, and each that failed.
        on_wait: Called when another driver holds an archive.
    """

    def __init__(
        self,
        specs: Sequence[TopicArchiveSpec],
        loaded: Loaded,
        brokers: Brokers,
        files: Callable[[str], FileSystem],
        *,
        on_round: Callable[[RoundOutcome], None] = lambda _: None,
        on_failure: Callable[[RoundFailure], None] = lambda _: None,
        on_wait: Callable[[LockHeldError], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loaded = loaded
        self._brokers = brokers
        self._files = files
        self._on_round = on_round
        self._on_failure = on_failure
        self._clock = clock
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._spark: SparkSession | None = None
        self._tag = f"headwater-archive-{uuid.uuid4().hex}"
        self._topics = [
            _Topic(
                TopicArchive(each, brokers, files(each.table), is_stopped=self._stop.is_set, on_wait=on_wait),
                TopicProgress(each.freshness_ms / 1000, max(each.round_bytes // BYTES_PER_OFFSET, 1)),
            )
            for each in specs
        ]

    def stop(self) -> None:
        """Let no round be committed any more, and end their jobs. May be called from another thread."""
        self._stop.set()
        self._wake.set()
        if self._spark is not None and lost_jvm() is None:
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def run_once(self, start_spark: Callable[[], SparkSession]) -> list[RoundFailure]:
        """Let every table catch up with its topic as it is now; return the failures. Raises SessionError."""
        import_pyspark()
        failures: list[RoundFailure] = []
        with (
            ThreadPoolExecutor(OPENED_AT_ONCE, "open") as opening,
            ThreadPoolExecutor(AT_ONCE, "archive") as running,
        ):
            opened = [opening.submit(self._open, each) for each in self._topics]
            try:
                self._spark = start_spark()
                rounds = [running.submit(self._catch_up, each, o) for each, o in zip(self._topics, opened, strict=True)]
                failures = [failure for each in rounds if (failure := each.result()) is not None]
            except BaseException:
                self.stop()
                raise
            finally:
                self._close(opened)
        return failures

    def run(self, start_spark: Callable[[], SparkSession]) -> None:
        """Keep every table as fresh as it is declared, until `stop`. Raises SessionError."""
        import_pyspark()
        opened: list[Future[None]] = []
        with (
            ThreadPoolExecutor(OPENED_AT_ONCE, "open") as opening,
            ThreadPoolExecutor(AT_ONCE, "archive") as running,
        ):
            try:
                self._spark = start_spark()
                by_progress = {id(each.progress): each for each in self._topics}
                with ClusterClient(client_of(self._brokers)) as cluster:
                    while not self._stop.is_set():
                        self._look(cluster)
                        for progress in due([each.progress for each in self._topics], self._clock(), AT_ONCE):
                            topic = by_progress[id(progress)]
                            progress.began()
                            if topic.is_open:
                                running.submit(self._round, topic)
                            else:  # a lock takes some seconds, and none of the places
                                opened.append(opening.submit(self._open_later, topic, running))
                        self._wake.wait(LOOK_S)
                        self._wake.clear()
            except BaseException:
                self.stop()
                raise
            finally:
                self._close(opened)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _close(self, opened: Sequence[Future[None]]) -> None:
        for each in opened:
            each.exception()
        for topic in self._topics:
            topic.archive.close()

    def _open(self, topic: _Topic) -> None:
        topic.archive.open()
        topic.is_open = True

    def _open_later(self, topic: _Topic, running: ThreadPoolExecutor) -> None:
        try:
            self._open(topic)
        except Exception as error:  # noqa: BLE001 - one archive's failure is its own
            self._failed(topic, error)
            return
        if not self._stop.is_set():
            running.submit(self._round, topic)

    def _catch_up(self, topic: _Topic, opened: Future[None]) -> RoundFailure | None:
        """Run rounds until one has left nothing behind."""
        try:
            opened.result()
            while True:
                outcome = self._run_round(topic)
                if not outcome.is_empty:
                    self._on_round(outcome)
                if not outcome.plan.backlog:
                    return None
        except Exception as error:  # noqa: BLE001 - one archive's failure is its outcome
            return self._failure(topic, error, None)

    def _round(self, topic: _Topic) -> None:
        try:
            outcome = self._run_round(topic)
        except Exception as error:  # noqa: BLE001 - one archive's failure is its own
            self._failed(topic, error)
            return
        archived = {**topic.ends, **outcome.plan.ends}
        topic.ends = archived
        topic.progress.succeeded(sum(archived.values()), outcome.plan.backlog, self._clock())
        self._wake.set()
        if not outcome.is_empty:
            self._on_round(outcome)

    def _run_round(self, topic: _Topic) -> RoundOutcome:
        if self._stop.is_set():
            raise ArchiveFailed("stopped before it began")
        assert self._spark is not None
        if topic.session is None:
            topic.session = self._spark.newSession()
        session = topic.session
        session.sparkContext.addJobTag(self._tag)
        return topic.archive.run_round(session, lambda: self._columns(session, topic))

    def _columns(self, session: SparkSession, topic: _Topic) -> KnownColumns:
        """The columns of a declared topic, found for it alone: another topic's mistake is not its own."""
        name = topic.archive.spec.topic
        pipeline = self._loaded.pipeline
        own = {each: declared for each, declared in pipeline.topics.items() if each == name}
        may_change = any(each.schema_source == FROM_REGISTRY or each.events for each in own.values())
        if topic.columns is not None and not (may_change and self._clock() - topic.columns_s >= COLUMNS_S):
            return topic.columns
        loaded = dataclasses.replace(self._loaded, pipeline=pipeline.model_copy(update={"topics": own}))
        found = find_declared(session, loaded, KnownColumns(own), self._brokers)
        if found.problems:
            raise PipelineError(list(found.problems))
        topic.columns, topic.columns_s = found.columns, self._clock()
        return found.columns

    def _look(self, cluster: ClusterClient) -> None:
        """Ask for the ends of all logs. What cannot be asked now is asked at the next look."""
        now_s = self._clock()
        for topic in self._topics:
            name = topic.archive.spec.topic
            try:
                ends = cluster.list_offsets({(name, p): LATEST for p in cluster.partitions(name)})
            except ClientError:
                cluster.forget_leader(name)
                continue
            topic.progress.seen(sum(ends.values()), now_s)

    def _failed(self, topic: _Topic, error: Exception) -> None:
        retry_s = topic.progress.failed(self._clock())
        if isinstance(error, LockLostError):
            topic.archive.close()
            topic.is_open = False
        topic.columns = None
        if not self._stop.is_set():
            self._on_failure(self._failure(topic, error, retry_s))

    def _failure(self, topic: _Topic, error: Exception, retry_s: float | None) -> RoundFailure:
        spec = topic.archive.spec
        is_user_error = isinstance(error, ArchiveError | PipelineError)
        return RoundFailure(spec.topic, spec.table, self._loaded.redacted(_reason(error)), is_user_error, retry_s)


def _reason(error: Exception) -> str:
    """One line about a failure, also about one that nobody foresaw."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if isinstance(error, PipelineError):
        return "; ".join(map(str, error.problems))
    if isinstance(
        error,
        ArchiveError | ArchiveFailed | FileSystemError | LockHeldError | LockLostError | LockUnavailableError,
    ):
        return str(error)
    if isinstance(error, Py4JError | PySparkException | ConnectionError):
        return lost_jvm(JVM_LOST_SECONDS_MAX) or first_line(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return f"unexpected {type(error).__name__}: {first_line(error)}"
