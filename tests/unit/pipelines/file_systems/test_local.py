from __future__ import annotations

import errno
import pickle
import threading
from pathlib import Path

import pytest

from headwater.pipelines.file_systems.file_system import FileSystemError, walk
from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.file_systems.opening import file_system

FILES = LocalFiles()


def test_a_file_is_created_once(tmp_path: Path) -> None:
    path = f"file://{tmp_path}/a/b/plan.json"
    assert FILES.read(path) is None
    assert FILES.create(path, b"first")
    assert not FILES.create(path, b"second")
    assert FILES.read(path) == b"first"
    FILES.replace(path, b"third")
    assert FILES.read(f"{tmp_path}/a/b/plan.json") == b"third"
    assert [entry.name for entry in FILES.list(f"{tmp_path}/a/b")] == ["plan.json"]


def test_of_many_creators_one_wins(tmp_path: Path) -> None:
    won: list[int] = []

    def create(number: int) -> None:
        if FILES.create(f"{tmp_path}/commit", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert FILES.read(f"{tmp_path}/commit") == str(won[0]).encode()


def test_a_rename_never_replaces(tmp_path: Path) -> None:
    source, target = f"{tmp_path}/new/part", f"{tmp_path}/dt=1/part"
    with FILES.writer(source) as file:
        file.write(b"rows")
    FILES.rename(source, target)
    with pytest.raises(FileNotFoundError):
        FILES.rename(source, target)
    with FILES.writer(source) as file:
        file.write(b"others")
    with pytest.raises(FileExistsError):
        FILES.rename(source, target)
    assert FILES.read(target) == b"rows"
    with FILES.open(target) as opened:
        assert opened.read(2) == b"ro"
    with pytest.raises(FileExistsError):
        FILES.rename(f"{tmp_path}/new", f"{tmp_path}/dt=1")


def test_entries_tell_files_from_folders(tmp_path: Path) -> None:
    FILES.replace(f"{tmp_path}/x/one", b"1234")
    FILES.make_folder(f"{tmp_path}/x/two/three")
    FILES.replace(f"{tmp_path}/x/two/four", b"")
    assert [(entry.name, entry.is_folder, entry.size) for entry in FILES.list(f"{tmp_path}/x")] == [
        ("one", False, 4),
        ("two", True, 0),
    ]
    assert [path for path, _ in walk(FILES, f"{tmp_path}/x")] == ["one", "two/four"]
    assert FILES.list(f"{tmp_path}/none") == []
    assert FILES.entry(f"{tmp_path}/none") is None
    assert FILES.entry(f"{tmp_path}/x/one/below") is None
    FILES.delete(f"{tmp_path}/x")
    FILES.delete(f"{tmp_path}/x")
    assert FILES.entry(f"{tmp_path}/x") is None


def test_what_the_system_refuses_names_the_path(tmp_path: Path) -> None:
    FILES.replace(f"{tmp_path}/file", b"")
    with pytest.raises(FileSystemError, match=f"{tmp_path}/file/below cannot be used: Not a directory"):
        FILES.create(f"{tmp_path}/file/below", b"")
    with pytest.raises(FileSystemError, match="'ftp' is not supported; file, hdfs and s3a are"):
        file_system("ftp://host/lake")


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_full_disk_names_the_path_whether_a_write_or_the_end_meets_it(size: int) -> None:
    said = "/dev/full cannot be written: No space left"
    with pytest.raises(FileSystemError, match=said), FILES.writer("/dev/full") as file:
        file.write(b"x" * size)


def test_other_errors_of_the_writer_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError), FILES.writer(f"{tmp_path}/x"):
        raise ConnectionResetError(errno.ECONNRESET, "the broker has gone")


def test_a_file_system_goes_to_other_machines() -> None:
    assert pickle.loads(pickle.dumps(FILES)) == FILES
