"""Loads into a real HDFS, whose NameNode is killed in the middle, and into an S3 store."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.file_systems.options import FileSystemOptions
from headwater.pipelines.loads.request import LoadStatus
from headwater.pipelines.loads.targets import file_target
from headwater.pipelines.loads.targets.file_target import FileTarget
from headwater.pipelines.loads.targets.target import Writing
from headwater.pipelines.loads.verification import verify
from headwater.pipelines.publishing.opened_source import named_source
from headwater.pipelines.publishing.publisher import no_step, publish
from headwater.pipelines.publishing.request import PublishRequest
from headwater.pipelines.publishing.topic_declaration import declared_topic
from tests.bench.processes import free_port
from tests.bench.spark.publish_client import Silent
from tests.hdfs import HdfsProcesses
from tests.spark.loads.conftest import Dock

pytestmark = pytest.mark.slow


class EndedError(BaseException):
    """Where the driver is killed, too."""


def numbers(count: int) -> list[Any]:
    return [{"n": n} for n in range(count)]


@pytest.mark.parametrize("form", ["parquet", "avro", "delta"])
def test_loads_on_hdfs_are_whole_and_verified_and_can_be_published_back(dock: Dock, hdfs_lake: str, form: str) -> None:
    dock.create()
    dock.produce(numbers(20), timestamp_ms=1_357_016_400_000)
    target, published = f"{hdfs_lake}/flights", f"{dock.topic}.published"
    dock.create(name=published)
    by = ("date(_timestamp)",)
    first = dock.load(target, format=form, until="7", partition_by=by)
    assert (first.error, first.outcome) == ("", LoadStatus.LOADED)
    second = dock.load(target, format=form, partition_by=by)
    assert (second.error, second.outcome) == ("", LoadStatus.LOADED)
    assert dock.load(target, format=form, partition_by=by).outcome is LoadStatus.NOTHING_NEW
    found = verify(dock.spark, file_system(target), target, dock.servers)
    assert (found.problems, found.rows, found.loads) == ((), 20, 2)
    if form != "delta":
        folders = {file.path.partition("/")[0] for file in (first.manifest.files if first.manifest else ())}
        assert folders == {"dt=2013-01-01"}
        check_manifests(dock, target)
    # Published back; but Avro files with a column `_error`, which is refused.
    if form != "avro":
        request = named_source(PublishRequest(target, published, "n"), file_system(target))
        done = publish(dock.spark, request, declared_topic(request, {}, None, None), dock.servers, Silent(), no_step)
        assert (done.rows, done.written) == (20, 20)


def check_manifests(dock: Dock, target: str) -> None:
    """They are JSON for others."""
    folder = f"{target}/_headwater/manifests"
    read = [file_system(target).read(f"{folder}/{entry.name}") for entry in file_system(target).list(folder)]
    found = sorted((json.loads(data or b"") for data in read), key=lambda each: each["sequence"])
    assert [each["offsets"] for each in found] == [{"0": [[0, 7]], "1": [[0, 7]]}, {"0": [[7, 10]], "1": [[7, 10]]}]
    assert [each["rows"] for each in found] == [14, 6]
    assert {tuple(file) for each in found for file in each["files"]} == {("path", "size", "sha256")}


def test_avro_files_are_written_by_tasks_where_http_is_closed(
    dock: Dock, hdfs_lake: str, hdfs: HdfsProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker starts a Java process of its own, with the jars of SPARK_HOME."""
    closed = tmp_path / "conf"
    shutil.copytree(hdfs.conf, closed)
    site = closed / "hdfs-site.xml"
    open_address = hdfs.webhdfs[0].removeprefix("http://")
    assert open_address in site.read_text()
    site.write_text(site.read_text().replace(open_address, f"127.0.0.1:{free_port()}"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(closed))
    dock.create()
    dock.produce(numbers(20))
    outcome = dock.load(f"{hdfs_lake}/flights", format="avro")
    assert (outcome.error, outcome.outcome) == ("", LoadStatus.LOADED)
    assert outcome.manifest is not None
    assert outcome.manifest.rows == 20


def test_a_namenode_that_is_killed_in_the_middle_costs_nothing(
    dock: Dock, hdfs_lake: str, hdfs: HdfsProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    dock.create()
    dock.produce(numbers(20))
    target = f"{hdfs_lake}/flights"
    original = FileTarget._carry_out
    killed: list[bool] = []

    def after_the_commit(self: FileTarget, commit: Any) -> None:
        if not killed:
            killed.append(True)
            hdfs.kill()
            raise EndedError
        original(self, commit)

    with monkeypatch.context() as patched:
        patched.setattr(FileTarget, "_carry_out", after_the_commit)
        with pytest.raises(EndedError):
            dock.load(target, load_id="a")
    hdfs.start_namenode()
    hdfs.await_ready()
    again = dock.load(target, load_id="a")
    assert again.outcome is LoadStatus.ALREADY_LOADED
    assert dock.offsets(target) == [(p, o) for p in (0, 1) for o in range(10)]


def test_a_namenode_in_safe_mode_is_said_in_a_line(
    dock: Dock, hdfs_lake: str, hdfs: HdfsProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = dataclasses.replace(FileSystemOptions.of(), wait_s=1.0)
    monkeypatch.setattr(FileSystemOptions, "of", lambda *_: short)
    dock.create()
    dock.produce(numbers(4))
    original = FileTarget.write

    def in_safe_mode(self: FileTarget, spark: Any, writing: Writing) -> Any:
        hdfs.safe_mode(True)
        return original(self, spark, writing)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(file_target.FileTarget, "write", in_safe_mode)
            outcome = dock.load(f"{hdfs_lake}/flights")
        assert outcome.outcome is LoadStatus.FAILED
        assert "safe mode" in outcome.error
        assert "\n" not in outcome.error
    finally:
        hdfs.safe_mode(False)
    assert dock.load(f"{hdfs_lake}/flights").outcome is LoadStatus.LOADED
