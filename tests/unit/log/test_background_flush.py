"""Flushing many logs beside the event loop, and removing files there."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import pytest

from headwater.logtier.log.durability import FlushRound
from headwater.logtier.log.flushing.flush_sweep import FlushSweep
from headwater.logtier.log.log import Log
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.runtime.background import WorkerThreads
from headwater.logtier.runtime.disk import RealDisk


class FakeDurability:
    def __init__(self, answer: Callable[[FlushRound], None]) -> None:
        self.is_complete = False
        self.rounds: list[FlushRound] = []
        self._answer = answer

    def request(self) -> FlushRound:
        flush = FlushRound()
        self.rounds.append(flush)
        self._answer(flush)
        return flush


class FakeLog:
    def __init__(self, answer: Callable[[FlushRound], None]) -> None:
        self.durability = FakeDurability(answer)


def sweep_of(logs: list[FakeLog]) -> tuple[FlushSweep, list[bool]]:
    over: list[bool] = []
    return FlushSweep(cast("list[Log]", logs), lambda: over.append(True), lambda _: None), over


def test_few_logs_are_flushed_at_a_time() -> None:
    logs = [FakeLog(lambda _: None) for _ in range(100)]
    sweep, over = sweep_of(logs)
    sweep.run()
    begun = [log for log in logs if log.durability.rounds]
    assert 0 < len(begun) < 32
    for log in logs:
        log.durability.rounds[0].complete(None)
    assert over == [True]


def test_thousands_of_logs_that_fail_at_once_are_no_problem() -> None:
    error = KafkaError(ErrorCode.kafka_storage_error)
    sweep, over = sweep_of([FakeLog(lambda flush: flush.complete(error)) for _ in range(5_000)])
    sweep.run()
    assert over == [True]


def test_a_sweep_without_work_is_over_at_once() -> None:
    sweep, over = sweep_of([])
    sweep.run()
    assert over == [True]
    assert sweep.is_over


def test_workers_do_tasks_in_order_and_tell_what_failed() -> None:
    workers = WorkerThreads("test", 1)
    done: list[int] = []
    futures = [workers.submit(lambda i=i: done.append(i)) for i in range(100)]  # type: ignore[misc]

    def fail() -> None:
        raise OSError(5, "Input/output error")

    failing = workers.submit(fail)
    with pytest.raises(OSError, match="Input/output error"):
        failing.result()
    assert [future.result() for future in futures] == [None] * 100
    assert done == list(range(100))


def test_no_more_threads_than_asked_for_are_started() -> None:
    workers = WorkerThreads("bounded", 3)
    release = threading.Event()
    futures: list[Future[None]] = [workers.submit(lambda: cast("None", release.wait())) for _ in range(50)]
    running = [thread for thread in threading.enumerate() if thread.name.startswith("bounded-")]
    assert len(running) <= 3
    release.set()
    for future in futures:
        future.result()


def test_threads_end_when_nobody_can_give_them_work_any_more() -> None:
    workers = WorkerThreads("orphaned", 2)
    release = threading.Event()
    futures: list[Future[None]] = [workers.submit(lambda: cast("None", release.wait())) for _ in range(5)]
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("orphaned-")]
    assert len(threads) == 2
    del workers
    gc.collect()
    release.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert all(future.done() for future in futures)


def test_work_for_which_no_thread_can_be_started_fails_and_the_next_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = WorkerThreads("refused", 1)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            workers.submit(lambda: None).result(60)
    done: list[int] = []
    workers.submit(lambda: done.append(1)).result(60)
    assert done == [1]


def test_chores_do_not_hold_up_syncs(tmp_path: Path) -> None:
    disk = RealDisk()
    release = threading.Event()
    chore = disk.in_background(lambda: cast("None", release.wait()))
    file = disk.open(str(tmp_path / "f"), create=True)
    disk.fsync_in_background([file], [str(tmp_path)]).result()
    assert not chore.done()
    release.set()
    chore.result()


def test_a_file_is_copied_in_parts(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.open(str(tmp_path / "from"), create=True)
    file.append([b"0123456789"])
    to = str(tmp_path / "to")
    disk.copy(file, to, 0, 4)
    disk.copy(file, to, 4, 6)
    assert disk.read(to) == b"0123456789"
    with pytest.raises(OSError, match="ends at byte 10"):
        disk.copy(file, to, 4, 7)
    disk.copy(file, str(tmp_path / "empty"), 0, 0)
    assert disk.read(str(tmp_path / "empty")) == b""


def test_a_file_system_tells_its_size_and_is_synced(tmp_path: Path) -> None:
    volume = RealDisk().volume(str(tmp_path))
    assert volume.total_bytes >= volume.usable_bytes > 0
    assert volume.sync() in (True, False)
    volume.close()
    volume.close()
