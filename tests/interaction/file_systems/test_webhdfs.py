"""WebHDFS while servers fail: what waiting mends is waited for, and everything else is one clear line."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.pipelines.file_systems.file_system import FileSystemError
from headwater.pipelines.file_systems.jvm_files import JvmFiles
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.file_systems.options import FileSystemOptions
from headwater.pipelines.file_systems.webhdfs import WebHdfsFiles
from tests.bench.processes import free_port
from tests.hdfs import HdfsProcesses

pytestmark = pytest.mark.slow
SHORT_S = 1.0
METRIC_S_MAX = 60


def files_of(hdfs: HdfsProcesses, *, user: str = "", wait_s: float = 120.0) -> WebHdfsFiles:
    return WebHdfsFiles(hdfs.webhdfs, FileSystemOptions(user=user or hdfs.user, wait_s=wait_s))


@contextmanager
def lossy(url: str, lost: str) -> Iterator[tuple[str, list[str]]]:
    """A proxy that answers nothing to the first request whose line holds a text, once the server has answered it."""
    target = url.removeprefix("http://").split(":")
    lost_lines: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client, socket.create_connection((target[0], int(target[1]))) as upstream:
                    request = b""
                    while b"\r\n\r\n" not in request:
                        request += client.recv(65536)
                    line = request.split(b"\r\n", 1)[0].decode()
                    head = request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
                    upstream.sendall(head)
                    answer = b""
                    while some := upstream.recv(65536):
                        answer += some
                    if lost in line and not lost_lines:
                        lost_lines.append(line)
                        continue
                    client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", lost_lines
        finally:
            server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.mark.parametrize("operation", ["op=RENAME", "op=CREATE", "op=MKDIRS"])
def test_an_answer_that_is_lost_is_no_failure(hdfs: HdfsProcesses, hdfs_folder: str, operation: str) -> None:
    with lossy(hdfs.webhdfs[0], operation) as (url, lost):
        files = WebHdfsFiles([url], FileSystemOptions(user=hdfs.user))
        assert files.create(f"{hdfs_folder}/commit", b"ours")
        assert not files.create(f"{hdfs_folder}/commit", b"theirs")
        files.rename(f"{hdfs_folder}/commit", f"{hdfs_folder}/below/commit")
    assert len(lost) == 1
    assert files_of(hdfs).read(f"{hdfs_folder}/below/commit") == b"ours"


def test_a_namenode_that_is_killed_is_waited_for(hdfs: HdfsProcesses, hdfs_folder: str) -> None:
    files = files_of(hdfs)
    content = b"x" * 3_000_000
    assert files.create(f"{hdfs_folder}/before", content)
    with files.open(f"{hdfs_folder}/before") as opened:
        opened.read(10)
        hdfs.kill()
        with pytest.raises(FileSystemError, match="WebHDFS does not answer at http"):
            files_of(hdfs, wait_s=SHORT_S).read(f"{hdfs_folder}/before")
        hdfs.start_namenode()
        assert files.create(f"{hdfs_folder}/after", b"2")
        assert len(opened.read()) == len(content) - 10
    assert [entry.name for entry in files.list(hdfs_folder)] == ["after", "before"]


def test_safe_mode_is_waited_for(hdfs: HdfsProcesses, hdfs_folder: str) -> None:
    files = files_of(hdfs)
    files.create(f"{hdfs_folder}/before", b"1")
    hdfs.safe_mode(True)
    leaving = threading.Timer(0.5, hdfs.safe_mode, [False])
    try:
        assert files.read(f"{hdfs_folder}/before") == b"1"
        with pytest.raises(FileSystemError, match="safe mode"):
            files_of(hdfs, wait_s=SHORT_S).create(f"{hdfs_folder}/after", b"2")
    finally:
        leaving.start()
    assert files.create(f"{hdfs_folder}/after", b"2")
    leaving.join()


def test_a_lost_datanode_is_waited_for(hdfs: HdfsProcesses, hdfs_folder: str) -> None:
    files = files_of(hdfs)
    hdfs.kill("dn")
    try:
        with pytest.raises(FileSystemError) as failed:
            files_of(hdfs, wait_s=SHORT_S).create(f"{hdfs_folder}/a", b"1")
        assert "\n" not in str(failed.value)
    finally:
        hdfs.start_datanode()
    assert files.create(f"{hdfs_folder}/a", b"1")
    hdfs.await_ready()


def test_a_user_without_rights_is_told_so_at_once(hdfs: HdfsProcesses, hdfs_folder: str) -> None:
    files_of(hdfs).make_folder(hdfs_folder)
    with pytest.raises(FileSystemError, match=r"Permission denied: user=bob, access=WRITE") as failed:
        files_of(hdfs, user="bob").create(f"{hdfs_folder}/a", b"1")
    assert hdfs_folder in str(failed.value)


def test_a_folder_that_is_full_is_told_at_once(hdfs: HdfsProcesses, hdfs_folder: str) -> None:
    files = files_of(hdfs)
    files.make_folder(hdfs_folder)
    set_space_quota(hdfs, hdfs_folder, 1 << 20)
    with pytest.raises(FileSystemError, match=r"cannot be used: .*[Qq]uota") as failed:
        files.create(f"{hdfs_folder}/a", b"1")
    assert "\n" not in str(failed.value)
    with pytest.raises(FileSystemError, match=r"cannot be used: "), files.writer(f"{hdfs_folder}/b") as out:
        out.write(b"x" * 3_000_000)


def set_space_quota(hdfs: HdfsProcesses, folder: str, size_bytes: int) -> None:
    path = folder.removeprefix(hdfs.url)
    asked = f"op=SETQUOTA&storagespacequota={size_bytes}&user.name={hdfs.user}"
    request = urllib.request.Request(f"{hdfs.webhdfs[0]}/webhdfs/v1{path}?{asked}", method="PUT")
    with urllib.request.urlopen(request, timeout=30):
        pass


def test_files_are_synced_to_the_device(hdfs: HdfsProcesses, hdfs_folder: str) -> None:
    before = _synced(hdfs)
    files_of(hdfs).create(f"{hdfs_folder}/a", b"1")
    with files_of(hdfs).writer(f"{hdfs_folder}/b") as out:
        out.write(b"2")
    deadline = time.monotonic() + METRIC_S_MAX  # a metric is cached for a while
    while _synced(hdfs) < before + 2:
        assert time.monotonic() < deadline, "the DataNode has not synced the blocks"
        time.sleep(0.2)


def _synced(hdfs: HdfsProcesses) -> int:
    url = f"{hdfs.datanode}/jmx?qry=Hadoop:service=DataNode,name=DataNodeActivity-*"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return int(json.load(answer)["beans"][0]["FsyncCount"])


def test_where_http_is_closed_a_jvm_is_started_and_told(hdfs: HdfsProcesses, hdfs_folder: str) -> None:
    told: list[str] = []
    closed = {"fs.defaultFS": hdfs.url, "dfs.namenode.http-address": f"127.0.0.1:{free_port()}"}
    files = file_system(hdfs_folder, FileSystemOptions(user=hdfs.user, hadoop=closed), told.append)
    assert isinstance(files, JvmFiles)
    assert len(told) == 1
    assert "a Java process is started" in told[0]
    short = "hdfs://" + hdfs_folder.removeprefix(hdfs.url)  # of the default file system
    assert files.create(f"{short}/a", b"1")
    assert files_of(hdfs).read(f"{hdfs_folder}/a") == b"1"


def test_the_active_namenode_of_a_pair_is_found_again_after_a_failover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = HdfsProcesses(tmp_path / "pair", is_pair=True)
    try:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(pair.conf))
        files = file_system("hdfs:///lake/a")
        assert isinstance(files, WebHdfsFiles)
        assert files.create("hdfs:///lake/a", b"1")
        assert files.read("hdfs://lake/lake/a") == b"1"
        pair.kill("nn0")
        failing_over = threading.Timer(0.5, pair.make_active, ["nn1"])
        failing_over.start()
        assert files.create("hdfs:///lake/b", b"2")
        assert not files.create("hdfs:///lake/a", b"3")
        failing_over.join()
    finally:
        pair.stop()
