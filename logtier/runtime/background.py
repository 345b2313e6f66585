"""Worker threads for tasks that wait for a device, outside the event loop."""

import errno
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeAlias

Task: TypeAlias = Callable[[], None]


class WorkerThreads:
    """At most `count` daemon threads, started on demand, that run tasks in the order of submission.

    The threads are daemons so that a device without an answer cannot prevent the process from ending. They end after
    the last reference to this object is gone. A task must not access state that the event loop changes.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._pool = _Pool()
        weakref.finalize(self, self._pool.end).atexit = False

    def submit(self, task: Task) -> "Future[None]":
        """Run a task on one of the threads. The future holds its exception, or OSError if no thread can start."""
        future: Future[None] = Future()
        pool = self._pool
        pool.tasks.put((future, task))
        with pool.lock:
            starts = pool.idle < pool.tasks.qsize() and pool.threads < self._count
            if starts:
                pool.threads += 1
                number = pool.threads
        if starts:
            thread = threading.Thread(target=pool.run, name=f"{self._name}-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                pool.could_not_start(error)
        return future


class _Pool:
    """State shared by the threads. They hold no reference to the owner, which can be freed while they wait."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[tuple[Future[None], Task] | None] = SimpleQueue()
        self.threads = 0
        self.idle = 0
        self.lock = threading.Lock()

    def run(self) -> None:
        while True:
            with self.lock:
                self.idle += 1
            found = self.tasks.get()
            with self.lock:
                self.idle -= 1
            if found is None:
                return
            future, task = found
            try:
                task()
            except BaseException as error:  # noqa: BLE001 (belongs to the submitter)
                future.set_exception(error)
            else:
                future.set_result(None)
            # A reference to a finished task would keep its files open.
            del found, future, task

    def end(self) -> None:
        """End every thread after the queued tasks."""
        for _ in range(self.threads):
            self.tasks.put(None)

    def could_not_start(self, error: RuntimeError) -> None:
        """Leave the task to the other threads; without any, fail it."""
        with self.lock:
            self.threads -= 1
            is_alone = self.threads == 0
        if is_alone:
            try:
                found = self.tasks.get_nowait()
            except Empty:
                return
            if found is not None:
                found[0].set_exception(OSError(errno.EAGAIN, str(error)))
