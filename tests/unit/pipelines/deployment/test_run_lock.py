"""The lock of a state folder: who has it, and who only seems to."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from headwater.pipelines.deployment.run_lock import UNKNOWN_PROCESS, hold, holder, is_holder
from headwater.pipelines.errors import PipelineBusy


def test_a_run_that_holds_the_folder_is_told_by_its_process(tmp_path: Path) -> None:
    folder = str(tmp_path / "shop")
    assert holder(folder) is None
    with hold(folder):
        assert holder(folder) == os.getpid()
    assert holder(folder) is None


def test_a_second_run_is_refused_with_the_process_of_the_first(tmp_path: Path) -> None:
    told = pytest.raises(PipelineBusy, match=rf"still alive \(process {os.getpid()}\)")
    with hold(str(tmp_path)), told, hold(str(tmp_path)):
        pass


def test_a_process_id_of_a_run_before_is_not_taken_for_the_holder(tmp_path: Path) -> None:
    """Its number may be another program's by now, and that must get no signal."""
    with open(tmp_path / "lock", "w+", encoding="ascii") as lock:
        lock.write("1\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert holder(str(tmp_path)) == UNKNOWN_PROCESS
        assert is_holder(str(tmp_path), os.getpid())
        assert not is_holder(str(tmp_path), os.getppid())


def test_a_lock_whose_holder_has_not_written_yet_is_held_by_an_unknown_process(tmp_path: Path) -> None:
    with open(tmp_path / "lock", "w+", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert holder(str(tmp_path)) == UNKNOWN_PROCESS


def test_a_run_begins_although_somebody_just_asks_whether_one_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    refusals = [OSError(), OSError()]

    def contended(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX and refusals:
            raise refusals.pop()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", contended)
    with hold(str(tmp_path)):
        assert not refusals


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineBusy, match="give another with --state"), hold(str(tmp_path / "file" / "shop")):
        pass
