"""A commit waits for the lock of its table as long as another process holds it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.pipelines.archive.commit_lock import commit_lock
from headwater.pipelines.archive.errors import ArchiveFailed
from headwater.pipelines.locks.table_lock import table_lock
from tests.waiting import until


def minutes() -> Callable[[], float]:
    """A clock of which each look is a minute later."""
    looks = itertools.count()
    return lambda: 60.0 * next(looks)


def test_a_commit_waits_for_as_long_as_it_takes_and_says_so_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[None] = []

    def is_stopped() -> bool:
        looks.append(None)
        return False

    def commit() -> str:
        with commit_lock(str(tmp_path), is_stopped, clock=minutes()):
            return "committed"

    with ThreadPoolExecutor(1) as pool:
        with table_lock(str(tmp_path)):
            done = pool.submit(commit)
            until(lambda: len(looks) >= 30, running=[done])
        assert done.result(120) == "committed"
    said = len([each for each in caplog.records if "holds the lock" in each.getMessage()])
    assert said == 1 + (len(looks) - 1) // 10


def test_a_wait_ends_when_the_archiver_stops(tmp_path: Path) -> None:
    stop = threading.Event()

    def commit() -> None:
        with commit_lock(str(tmp_path), stop.is_set):
            pytest.fail("two hold the lock")

    with ThreadPoolExecutor(1) as pool, table_lock(str(tmp_path)):
        done = pool.submit(commit)
        stop.set()
        with pytest.raises(ArchiveFailed, match="nothing was committed"):
            done.result(120)


def test_maintenance_waits_for_its_time_only(tmp_path: Path) -> None:
    with (
        table_lock(str(tmp_path)),
        pytest.raises(ArchiveFailed, match="another process holds the lock"),
        commit_lock(str(tmp_path), wait_s=60.0, clock=minutes()),
    ):
        pytest.fail("two hold the lock")
