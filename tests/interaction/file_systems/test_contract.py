"""What every file system keeps, on real servers."""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from py4j import java_gateway, protocol
from pyspark.errors.exceptions.captured import capture_sql_exception

from headwater.pipelines.file_systems.file_system import FileSystem, FileSystemError, walk
from headwater.pipelines.file_systems.hadoop_jvm import OwnJvm
from headwater.pipelines.file_systems.jvm_files import JvmFiles
from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.file_systems.object_store import ObjectStoreFiles
from headwater.pipelines.file_systems.options import FileSystemOptions
from headwater.pipelines.file_systems.webhdfs import WebHdfsFiles
from tests.hdfs import HdfsProcesses
from tests.s3 import S3Server

pytestmark = pytest.mark.slow
CREATORS = 8


@dataclass(frozen=True, slots=True)
class Place:
    """A file system, and a folder of the test's own there."""

    files: FileSystem
    folder: str


@pytest.fixture(params=["local", "webhdfs", "jvm", "s3"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    name = uuid.uuid4().hex
    if request.param == "local":
        yield Place(LocalFiles(), f"{tmp_path}/{name}")
        return
    if request.param == "s3":
        s3: S3Server = request.getfixturevalue("s3_server")
        files = ObjectStoreFiles(FileSystemOptions(hadoop=s3.settings))
        s3.make_bucket(name)
        yield Place(files, f"s3a://{name}/lake")
        return
    hdfs: HdfsProcesses = request.getfixturevalue("hdfs")
    if request.param == "webhdfs":
        yield Place(WebHdfsFiles(hdfs.webhdfs, FileSystemOptions(user=hdfs.user)), f"{hdfs.url}/{name}")
    else:
        # What a Spark session leaves behind in its process.
        monkeypatch.setattr(java_gateway, "get_return_value", capture_sql_exception(protocol.get_return_value))
        yield Place(JvmFiles("hdfs", OwnJvm({"dfs.replication": "1"})), f"{hdfs.url}/{name}")


def test_a_file_is_created_once_and_replaced_whole(place: Place) -> None:
    files, path = place.files, f"{place.folder}/a/b c/plan ü%.json"
    assert files.read(path) is None
    assert files.entry(path) is None
    assert files.create(path, b"first")
    assert not files.create(path, b"second")
    assert files.read(path) == b"first"
    files.replace(path, b"third, longer")
    assert files.read(path) == b"third, longer"
    assert [entry.name for entry in files.list(f"{place.folder}/a/b c")] == ["plan ü%.json"]
    entry = files.entry(path)
    assert entry is not None
    assert (entry.name, entry.is_folder, entry.size) == ("plan ü%.json", False, 13)
    assert entry.modified_at > 1_600_000_000


def test_of_many_creators_one_wins(place: Place) -> None:
    assert place.files.is_atomic == (not isinstance(place.files, ObjectStoreFiles))
    creators = CREATORS if place.files.is_atomic else 1  # a lock admits one at a time
    won: list[int] = []

    def create(number: int) -> None:
        if place.files.create(f"{place.folder}/commit", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(creators)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert place.files.read(f"{place.folder}/commit") == str(won[0]).encode()
    assert [entry.name for entry in place.files.list(place.folder)] == ["commit"]


def test_a_rename_never_replaces(place: Place) -> None:
    files, source, target = place.files, f"{place.folder}/new/part", f"{place.folder}/dt=1/part"
    files.replace(source, b"rows")
    files.rename(source, target)
    assert files.read(source) is None
    with pytest.raises(FileNotFoundError):
        files.rename(source, target)
    files.replace(source, b"others")
    with pytest.raises(FileExistsError):
        files.rename(source, target)
    assert files.read(target) == b"rows"
    assert files.read(source) == b"others"
    with pytest.raises(FileExistsError):
        files.rename(f"{place.folder}/new", f"{place.folder}/dt=1")
    files.rename(f"{place.folder}/new", f"{place.folder}/dt=2")
    assert [name for name, _ in walk(files, place.folder)] == ["dt=1/part", "dt=2/part"]


def test_a_large_file_is_written_and_read_from_any_place(place: Place) -> None:
    files, path = place.files, f"{place.folder}/part-0.bin"
    content = b"0123456789abcdef" * 200_000
    with files.writer(path) as out:
        for start in range(0, len(content), 700_001):
            out.write(content[start : start + 700_001])
    entry = files.entry(path)
    assert entry is not None
    assert entry.size == len(content)
    with files.open(path) as opened:
        assert opened.read(10) == content[:10]
        opened.seek(3_000_007)
        assert opened.read(20) == content[3_000_007:3_000_027]
        opened.seek(5)
        assert opened.read() == content[5:]
    with files.writer(path) as out:
        out.write(b"first\nsecond\n")
    with files.open(path) as opened:
        assert opened.readline(100) == b"first\n"
        assert list(opened) == [b"second\n"]
    with files.writer(path) as out:
        out.write(b"less")
    assert files.read(path) == b"less"


def test_a_writer_that_fails_leaves_a_file_that_can_be_deleted(place: Place) -> None:
    path = f"{place.folder}/part-0.bin"
    with pytest.raises(ZeroDivisionError), place.files.writer(path) as out:
        out.write(b"x" * 5_000_000)
        raise ZeroDivisionError
    place.files.delete(path)
    assert place.files.entry(path) is None
    assert place.files.create(path, b"whole")


def test_folders_are_made_listed_and_deleted(place: Place) -> None:
    files, folder = place.files, f"{place.folder}/lake"
    assert files.list(folder) == []
    files.make_folder(f"{folder}/a")
    files.make_folder(f"{folder}/a")
    files.create(f"{folder}/b", b"12")
    assert [(entry.name, entry.is_folder, entry.size) for entry in files.list(folder)] == [
        ("a", True, 0),
        ("b", False, 2),
    ]
    files.delete(folder)
    files.delete(folder)
    assert files.list(folder) == []


def test_what_is_missing_or_of_another_kind_is_told_in_one_line(place: Place) -> None:
    files, path = place.files, f"{place.folder}/file"
    files.create(path, b"1")
    with pytest.raises(FileNotFoundError), files.open(f"{place.folder}/none"):
        pass
    with pytest.raises(FileSystemError) as failed:
        files.replace(f"{path}/below", b"2")
    assert path in str(failed.value)
    assert "\n" not in str(failed.value)
    with pytest.raises(FileSystemError):
        files.list(path)
    assert files.entry(f"{path}/below") is None


def test_it_can_be_pickled(place: Place) -> None:
    place.files.create(f"{place.folder}/a", b"1")
    assert pickle.loads(pickle.dumps(place.files)).read(f"{place.folder}/a") == b"1"
