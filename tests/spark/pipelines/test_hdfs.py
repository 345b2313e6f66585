"""Pipelines whose checkpoints, tables and files are on a real HDFS, taken over by another machine and interrupted."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headwater.cli.main import main
from headwater.pipelines.deployment.state_folder import StateFolder
from headwater.pipelines.errors import PipelineError, PipelineFailed
from headwater.pipelines.file_systems.opening import file_system
from tests.hdfs import HdfsProcesses

pytestmark = pytest.mark.slow

PIPELINE = """\
pipeline: p
topics: {"@in": {value: string}}
stages:
  - name: copy
    from: {topic: "@in", as: i, max_offsets_per_trigger: 4}
    sql: SELECT value, _offset AS at, _topic, _partition, _offset FROM i
    to:
      - {topic: "@out", key: value}
      - {delta: LAKE/table}
      - {files: LAKE_PATH/files, format: parquet}
      - {jdbc: "${env:URL}", table: copies}
  - name: read
    from: {jdbc: "${env:URL}", table: items, increment: id, as: items}
    sql: SELECT id FROM items
    to: {delta: LAKE/items}
"""


@pytest.fixture
def lake(lab: Any, hdfs: HdfsProcesses, hdfs_folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder on HDFS, which is the default file system of Spark's JVM, too, as with HADOOP_CONF_DIR at its start."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
    conf = lab.spark._jsc.hadoopConfiguration()
    before = conf.get("fs.defaultFS")
    conf.set("fs.defaultFS", hdfs.url)
    yield "hdfs://" + hdfs_folder.removeprefix(hdfs.url)
    conf.set("fs.defaultFS", before)
    file_system(hdfs_folder).delete(hdfs_folder)


class Machine:
    """Runs the pipeline with a state folder of its own, and looks at what there is."""

    def __init__(self, lab: Any, lake: str, text: str, environ: dict[str, str]) -> None:
        self.lab = lab
        self.lake = lake
        self.text = text.replace("LAKE_PATH", lake.removeprefix("hdfs://")).replace("LAKE", lake)
        self._environ = environ
        self.checkpoints = f"{lake}/checkpoints"
        self.folder = StateFolder(self.checkpoints, "p")

    def run(self, state: str = "one", **more: Any) -> Any:
        return self.lab.run(
            self.text, environ=self._environ, **{"state": state, "checkpoints": self.checkpoints} | more
        )

    def rows(self, table: str, *columns: str) -> list[Any]:
        frame = self.lab.spark.read.format("delta").load(f"{self.lake}/{table}")
        return sorted(tuple(row) for row in frame.select(*columns).collect())

    def files(self) -> list[str]:
        frame = self.lab.spark.read.parquet(f"{self.lake}/files")
        return sorted(row[0] for row in frame.select("value").collect())

    def repeat_last_batch(self, stage: str) -> None:
        """Let the next run do a stage's last batch again, as after a crash behind its writes."""
        folder = self.folder.stage(stage)
        self.folder.files.delete(f"{folder.checkpoint}/commits/{folder.progress().done}")


def test_a_pipeline_is_taken_to_hdfs_and_over_by_another_machine_and_every_row_is_there_once(
    lab: Any, derby: Any, lake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    derby.run("CREATE TABLE items (id INT)", "INSERT INTO items VALUES (1), (2)")
    shop = Machine(lab, lake, PIPELINE, {"URL": derby.url})
    lab.produce("@in", [f"v{n}" for n in range(3)])
    shop.run(checkpoints="")
    with pytest.raises(PipelineFailed, match="--move takes the state along"):
        shop.run()
    assert (lab.folder / "one" / "p" / "copy" / "checkpoint" / "offsets").is_dir(), "the state folder is local"

    lab.produce("@in", [f"v{n}" for n in range(3, 8)])
    derby.run("INSERT INTO items VALUES (3)")
    shop.run(move=True)
    assert sorted(shop.folder.stages()) == ["copy", "read"]
    lock_id = shop.folder.lock_id()
    here = {path.name for path in (lab.folder / "one" / "p").iterdir()}
    assert here <= {"checkpoints.json", "lock", "moved.1", "spark.log"}

    lab.produce("@in", [f"v{n}" for n in range(8, 10)])
    derby.run("INSERT INTO items VALUES (4)")
    for stage in ("copy", "read"):
        shop.repeat_last_batch(stage)
    shop.run("two")
    assert shop.folder.lock_id() == lock_id
    wanted = [f"v{n}" for n in range(10)]
    assert sorted(value["value"] for value in lab.values("@out")) == wanted
    assert shop.rows("table", "value", "at") == [(f"v{n}", n) for n in range(10)]
    assert shop.files() == wanted
    assert [value for (value,) in derby.rows('SELECT "value" FROM copies')] == wanted
    assert shop.rows("items", "id") == [(1,), (2,), (3,), (4,)]

    # What commands say on a machine that has never run it, and on one that has.
    file = lab.write("pipeline.yaml", shop.text.replace("@", lab.prefix))
    for state, more in (("three", ["--checkpoints", shop.checkpoints]), ("two", [])):
        where = ["--state", str(lab.folder / state), *more]
        capsys.readouterr()
        assert main(["pipeline", "plan", str(file), *where, "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["deployed"]["copy"]["epoch"] == 1
        assert main(["pipeline", "status", "p", *where, "-o", "json", "-b", lab.servers]) == 0
        found = json.loads(capsys.readouterr().out)
        assert not found["alive"]
        assert [each["lag"] for each in found["stages"] if each["stage"] == "copy"] == [{f"{lab.prefix}in": 0}]

    with pytest.raises(PipelineFailed, match=r"the state of p is in hdfs://.*--move takes the state along"):
        shop.run("two", checkpoints="")


def test_a_run_outlives_a_namenode(lab: Any, lake: str, hdfs: HdfsProcesses) -> None:
    text = PIPELINE.partition("  - name: read")[0].replace('      - {jdbc: "${env:URL}", table: copies}\n', "")
    text = text.replace("LAKE_PATH", lake).replace("LAKE", lake)
    lab.produce("@in", ["v0", "v1"])
    said: list[str] = []
    step = threading.Event()

    def is_done() -> bool:
        written = len(lab.values("@out")) if f"{lab.prefix}out" in {t.name for t in lab.admin.list_topics()} else 0
        if written == 2 and not step.is_set():
            step.set()
            hdfs.kill()
            lab.produce("@in", ["v2", "v3"])
            hdfs.start_namenode()
        return written >= 4

    lab.run_until(text, is_done, checkpoints=f"{lake}/checkpoints", on_event=said.append)
    lab.run(text, checkpoints=f"{lake}/checkpoints")
    frame = lab.spark.read.format("delta").load(f"{lake}/table")
    assert sorted(row[0] for row in frame.select("value").collect()) == ["v0", "v1", "v2", "v3"]
    assert sorted(value["value"] for value in lab.values("@out")) == ["v0", "v1", "v2", "v3"]
    files = lab.spark.read.parquet(f"{lake}/files").select("value").collect()
    assert sorted(row[0] for row in files) == ["v0", "v1", "v2", "v3"]


def test_a_namenode_in_safe_mode_is_one_clear_line(
    lab: Any, lake: str, hdfs: HdfsProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwater.pipelines.file_systems import options
    from headwater.pipelines.file_systems.file_system import FileSystemError

    lab.produce("@in", ["v0"])
    shop = Machine(lab, lake, PIPELINE.partition("  - name: read")[0], {"URL": "jdbc:derby:memory:none"})
    short = dataclasses.replace(options.FileSystemOptions.of(), wait_s=1.0)
    hdfs.safe_mode(True)
    try:
        with monkeypatch.context() as patched, pytest.raises(FileSystemError, match="safe mode") as failed:
            patched.setattr(options.FileSystemOptions, "of", lambda *_: short)
            shop.run()
    finally:
        hdfs.safe_mode(False)
    assert "\n" not in str(failed.value)


def test_s3a_without_its_module_is_one_clear_line(lab: Any) -> None:
    lab.produce("@in", ["v0"])
    text = 'pipeline: p\ntopics: {"@in": {value: string}}\nstages:\n'
    text += '  - {name: s, from: {topic: "@in"}, to: {delta: "s3a://lake/table"}}\n'
    with pytest.raises((PipelineError, PipelineFailed), match=r"hadoop-aws:3.5.0 to spark.jars.packages") as failed:
        lab.run(text)
    assert "\n" not in str(failed.value)
