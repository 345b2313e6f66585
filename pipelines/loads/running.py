"""Runs the loads of several topics in one Spark session: side by side, each for itself, none stopping another."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Queue
from typing import TYPE_CHECKING, Final

from headwater.pipelines.analysis.topic_schemas import declared_topic_columns
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import Loaded
from headwater.pipelines.errors import PipelineError, PipelineFailed
from headwater.pipelines.file_systems.file_system import FileSystem
from headwater.pipelines.loads.errors import LoadError, LoadFailed
from headwater.pipelines.loads.failures import failure_reason
from headwater.pipelines.loads.loader import TopicLoad
from headwater.pipelines.loads.request import LoadOutcome, LoadRequest, LoadStatus
from headwater.pipelines.locks.broker_lock import LockHeldError
from headwater.pipelines.spark.importing import import_pyspark
from headwater.pipelines.spark.session import SessionError, lost_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LoadRun", "told_in_a_line"]

#: Loads that use Spark at a time: a small one is mostly waiting, and Spark shares its cores between their jobs.
AT_ONCE: Final = 4
#: Loads that are prepared at a time, ahead of Spark: each waits some seconds for its lock (KIP-134).
PREPARED_AHEAD: Final = 24


class LoadRun:
    """The loads of one command.

    Args:
        files: The file system of a target.
        on_end: Called for each load when it ends, in some thread.
    """

    def __init__(
        self,
        requests: Sequence[LoadRequest],
        loaded: Loaded,
        brokers: Brokers,
        files: Callable[[str], FileSystem],
        *,
        on_end: Callable[[LoadOutcome], None] = lambda _: None,
        on_wait: Callable[[LockHeldError], None] | None = None,
    ) -> None:
        self._requests = requests
        self._loaded = loaded
        self._brokers = brokers
        self._files = files
        self._on_end = on_end
        self._on_wait = on_wait
        self._stop = threading.Event()
        self._loads: list[TopicLoad] = []
        self._spark: SparkSession | None = None
        self._tag = f"headwater-load-{uuid.uuid4().hex}"  # of these loads' jobs alone: a notebook has others

    def stop(self) -> None:
        """Let no load commit any more, and end their jobs. May be called from another thread."""
        self._stop.set()
        for load in list(self._loads):
            load.stop()
        if self._spark is not None and lost_jvm() is None:
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def run(self, start_spark: Callable[[], SparkSession]) -> list[LoadOutcome]:
        """Run all loads; the outcomes are in the order of the requests. Raises SessionError if Spark does not start.

        Loads are prepared in order, a number of them ahead of Spark; whichever is prepared first is run first.
        """
        import_pyspark()  # a JVM's files are asked by threads, while Spark starts
        ahead = threading.Semaphore(PREPARED_AHEAD)
        prepared: Queue[tuple[int, TopicLoad | LoadOutcome]] = Queue()
        outcomes: dict[int, LoadOutcome] = {}
        with (
            ThreadPoolExecutor(PREPARED_AHEAD, "prepare") as preparing,
            ThreadPoolExecutor(AT_ONCE, "load") as loading,
        ):
            feeder = threading.Thread(target=self._feed, args=(preparing, ahead, prepared), name="loads-feed")
            feeder.start()
            try:
                self._spark = start_spark()
                running = [loading.submit(self._finish_next, prepared, ahead, outcomes) for _ in self._requests]
                for future in running:
                    future.result()
            except BaseException:
                self.stop()
                for _ in range(len(self._requests) - len(outcomes) if self._spark is None else 0):
                    _, load = prepared.get()
                    if isinstance(load, TopicLoad):
                        load.close()
                    ahead.release()
                raise
            finally:
                feeder.join()
        return [outcomes[number] for number in range(len(self._requests))]

    def _feed(
        self,
        pool: ThreadPoolExecutor,
        ahead: threading.Semaphore,
        prepared: Queue[tuple[int, TopicLoad | LoadOutcome]],
    ) -> None:
        """Begin to prepare each load, in order: what is ahead of Spark holds locks, and is limited."""
        for number, request in enumerate(self._requests):
            ahead.acquire()
            pool.submit(lambda n=number, r=request: prepared.put((n, self._prepare(r))))  # type: ignore[misc]

    def _prepare(self, request: LoadRequest) -> TopicLoad | LoadOutcome:
        began = time.monotonic()
        try:
            load = TopicLoad(request, self._brokers, self._files(request.target), on_wait=self._on_wait)
            self._loads.append(load)
            if self._stop.is_set():
                raise LoadFailed("stopped before it began")
            load.prepare()
        except Exception as error:  # noqa: BLE001 - one load's failure is its outcome
            return self._failed(request, error, began)
        return load

    def _finish_next(
        self,
        queue: Queue[tuple[int, TopicLoad | LoadOutcome]],
        ahead: threading.Semaphore,
        outcomes: dict[int, LoadOutcome],
    ) -> None:
        number, prepared = queue.get()
        try:
            outcome = self._finish(self._requests[number], prepared)
        finally:
            if isinstance(prepared, TopicLoad):
                prepared.close()
            ahead.release()
        outcomes[number] = outcome
        self._on_end(outcome)

    def _finish(self, request: LoadRequest, prepared: TopicLoad | LoadOutcome) -> LoadOutcome:
        if isinstance(prepared, LoadOutcome):
            return prepared
        began = time.monotonic()
        try:
            assert self._spark is not None
            if self._stop.is_set():
                raise LoadFailed("stopped before it began")
            session = self._spark.newSession()
            session.sparkContext.addJobTag(self._tag)
            return prepared.run(
                session, lambda: declared_topic_columns(session, self._loaded, request.topic, self._brokers)
            )
        except Exception as error:  # noqa: BLE001 - one load's failure is its outcome
            return self._failed(request, error, began)

    def _failed(self, request: LoadRequest, error: Exception, began: float) -> LoadOutcome:
        return LoadOutcome(
            request.topic,
            request.target,
            LoadStatus.FAILED,
            error=self._loaded.redacted(failure_reason(error)),
            is_user_error=isinstance(error, LoadError | PipelineError),
            seconds=time.monotonic() - began,
        )


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """Raise what a load can meet as PipelineFailed, with one line."""
    try:
        yield
    except (SessionError, PipelineFailed):
        raise
    except Exception as error:
        raise PipelineFailed(failure_reason(error)) from error
