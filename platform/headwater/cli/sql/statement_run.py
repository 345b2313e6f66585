"""One statement in a thread of its own, under a job tag, so that it can be cancelled while the caller stays free.

`SparkContext.addJobTag` and `cancelJobsWithTag` are used: `SparkSession.interruptTag` of Spark 4.2 finds no job that
PySpark's own threads start.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CANCEL_WAIT_S", "Cancelled", "StatementRun"]

QUEUED_MAX: Final = 4  # chunks of rows that wait for being shown
POLL_S: Final = 0.1  # between looks at whether the statement was cancelled
INTERRUPT_AFTER_S: Final = 1.0  # jobs end at once; what is no job, such as the listing of files, is interrupted then
CANCEL_WAIT_S: Final = 5.0  # how long the prompt waits for a cancelled statement
_numbers = itertools.count(1)


class Cancelled(Exception):  # noqa: N818 - an outcome
    """The statement was cancelled; raised in its thread where it would go on."""


class StatementRun:
    """A statement's thread and its chunks of results.

    `work` receives the run, calls `put` with what `chunks` yields, and may raise anything. A thread that does not end
    after `cancel` is left behind: jobs that it starts later are cancelled, too, until it ends.
    """

    def __init__(self, spark: SparkSession, work: Callable[[StatementRun], None]) -> None:
        from pyspark import InheritableThread

        self._spark = spark
        self._work = work
        self._tag = f"headwater-sql-{next(_numbers)}"
        self._queue: queue.Queue[Any] = queue.Queue(QUEUED_MAX)
        self._cancelled = threading.Event()
        self._failure: BaseException | None = None
        self._java_thread: Any = None
        self._canceller: threading.Thread | None = None
        self._thread: threading.Thread = InheritableThread(target=self._run)
        self._thread.daemon = True  # one that is stuck must not keep the process

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        try:
            context = self._spark.sparkContext
            context.addJobTag(self._tag)
            jvm.activate(self._spark)
            self._java_thread = jvm.java_thread(self._spark)
            self._work(self)
        except BaseException as error:  # noqa: BLE001 - `chunks` raises it in the caller's thread
            self._failure = error

    # -- in the statement's thread -------------------------------------------------------------------------------------

    def put(self, chunk: Any) -> None:
        """Hand on a chunk, when there is room. Raises Cancelled."""
        while True:
            self.check()
            try:
                self._queue.put(chunk, timeout=POLL_S)
            except queue.Full:
                continue
            return

    def check(self) -> None:
        """Raise Cancelled if the statement is cancelled."""
        if self._cancelled.is_set():
            raise Cancelled

    # -- in the caller's thread ----------------------------------------------------------------------------------------

    def chunks(self) -> Iterator[Any]:
        """Yield the chunks until the statement has ended; raises its error. Ctrl-C gets through between chunks.

        Raises Cancelled where no chunk is left and the thread of a cancelled statement has not ended: it may be stuck.
        """
        while True:
            alive = self._thread.is_alive()
            try:
                yield self._queue.get(timeout=POLL_S if alive else 0)
            except queue.Empty:
                if not alive:
                    break
                self.check()
        if self._failure is not None:
            raise self._failure

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def wait(self, seconds: float) -> bool:
        """Wait for the thread's end, and drop its chunks; whether it has ended."""
        end = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < end:
            self._thread.join(POLL_S)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Cancel the statement: its jobs, those that follow, and after a second its waiting. Returns at once."""
        self._cancelled.set()
        if self._canceller is None:
            self._canceller = threading.Thread(target=self._keep_cancelling, name=f"{self._tag}-cancel", daemon=True)
            self._canceller.start()

    def _keep_cancelling(self) -> None:
        began = time.monotonic()
        is_interrupted = False
        while self._thread.is_alive():
            try:
                self._spark.sparkContext.cancelJobsWithTag(self._tag)
                if not is_interrupted and self._java_thread is not None and self._late(began):
                    self._java_thread.interrupt()
                    is_interrupted = True
            except Exception:  # noqa: BLE001 - the session is closing: nothing runs any longer
                return
            self._thread.join(2 * POLL_S)

    @staticmethod
    def _late(began: float) -> bool:
        return time.monotonic() - began > INTERRUPT_AFTER_S
