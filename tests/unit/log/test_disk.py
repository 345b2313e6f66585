"""The real disk: atomic writes, locks, background syncs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.logtier.runtime.disk import RealDisk


def test_an_atomic_write_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    disk = RealDisk()
    path = str(tmp_path / "checkpoint")
    disk.write_atomic(path, b"one")
    disk.write_atomic(path, b"two", sync=False)
    assert disk.read(path) == b"two"
    assert [entry.name for entry in disk.listdir(str(tmp_path))] == ["checkpoint"]


def test_a_failed_atomic_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    path = str(tmp_path / "checkpoint")
    disk.write_atomic(path, b"one")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        disk.write_atomic(path, b"two")
    assert disk.read(path) == b"one"


def test_a_lock_keeps_others_out_until_it_is_released(tmp_path: Path) -> None:
    disk = RealDisk()
    path = str(tmp_path / ".lock")
    lock = disk.lock(path)
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    lock.release()
    lock.release()
    disk.lock(path).release()


def test_files_read_short_only_at_their_end(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.open(str(tmp_path / "f"), create=True)
    assert file.append([b"abc", bytearray(b"def"), memoryview(b"ghi")]) == 0
    assert file.size == 9
    assert (file.pread(3, 3), file.pread(100, 6), file.pread(5, 9)) == (b"def", b"ghi", b"")
    file.truncate(4)
    assert (file.size, file.append([b"!"])) == (4, 4)
    assert disk.open_read_only(file.path).pread(10, 0) == b"abcd!"


def test_a_closed_file_has_no_descriptor(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    file.close()
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        file.fileno()


def test_a_file_closes_with_its_last_reference(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    descriptor, opened = file.fileno(), os.fstat(file.fileno())
    del file
    try:
        now = os.fstat(descriptor)
    except OSError:
        return
    assert not os.path.samestat(now, opened)  # the number may be another file's already: other threads open files


def test_opening_what_is_not_there_fails_unless_it_is_to_be_created(tmp_path: Path) -> None:
    disk = RealDisk()
    with pytest.raises(FileNotFoundError):
        disk.open(str(tmp_path / "missing"))
    disk.remove(str(tmp_path / "missing"))
    disk.rmtree(str(tmp_path / "missing"))
    assert not disk.exists(str(tmp_path / "missing"))


def test_background_syncs_tell_when_they_are_done_and_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    file = disk.open(str(tmp_path / "f"), create=True)
    sync = disk.fsync_in_background([file], [str(tmp_path)])
    while not sync.done():
        pass
    sync.result()
    failing = disk.fsync_in_background([], [str(tmp_path / "missing")])
    while not failing.done():
        pass
    with pytest.raises(FileNotFoundError):
        failing.result()


def test_folders_are_listed_with_sizes(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.makedirs(str(tmp_path / "a" / "b"))
    disk.makedirs(str(tmp_path / "a" / "b"))
    disk.write_atomic(str(tmp_path / "a" / "c"), b"12345")
    (tmp_path / "a" / "dangling").symlink_to("nowhere")
    found = disk.listdir(str(tmp_path / "a"))
    assert [(entry.name, entry.is_directory) for entry in found] == [("b", True), ("c", False)]
    assert found[1].size_bytes == 5
    disk.rename(str(tmp_path / "a"), str(tmp_path / "z"))
    disk.rmtree(str(tmp_path / "z"))
    assert disk.listdir(str(tmp_path)) == []
    assert disk.free_bytes(str(tmp_path)) > 0


def test_what_is_not_in_memory_is_not_waited_for(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "segment"), create=True)
    file.append([bytes(range(256)) * 8192])
    assert file.pread_in_memory(300, 256) == file.pread(300, 256)
    assert file.pread_in_memory(300, file.size - 10) == file.pread(10, file.size - 10), "fewer at the end of the file"
    file.fsync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        file.pread_in_memory(300, 0)
    except BlockingIOError:
        file.pread(300, 0)
        assert file.pread_in_memory(300, 0) == file.pread(300, 0)
    else:
        pytest.skip("this file system does not give up its pages")


def test_a_file_system_that_cannot_tell_waits_for_the_newest_bytes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> int:
        raise OSError(95, "not supported")

    file = RealDisk().open(str(tmp_path / "segment"), create=True)
    file.append([bytes(range(256)) * 8192])
    monkeypatch.setattr(os, "preadv", unsupported)
    with pytest.raises(BlockingIOError):
        file.pread_in_memory(300, 0)
    assert file.pread_in_memory(300, file.size - 400) == file.pread(300, file.size - 400)
