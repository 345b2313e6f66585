"""What a run does first: refuse what does not fit, reset what shall be, note what runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.pipelines.definition import Loaded
from headwater.pipelines.deployment.deployment import Deployment
from headwater.pipelines.errors import PipelineError
from headwater.pipelines.file_systems.file_system import UnavailableError
from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.monitoring.stage_state import StageState, State

FILE = """\
pipeline: shop
topics:
  orders: {value: string}
  other: {value: string}
stages:
  - name: clean
    from: {topic: orders}
    sql: SELECT value FROM orders
    to: [{topic: clean}]
  - name: sums
    from: {topic: orders, watermark: {column: _timestamp, delay: 1 hour}}
    sql: SELECT window(_timestamp, '1 hour') AS hour, count(*) AS n FROM orders GROUP BY 1
    to: [{topic: sums}]
"""
LOG = 'v1\n{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"2"}}\n{"orders":{"0":7}}'
Load = Callable[..., Loaded]


def ran(deployment: Deployment, *names: str) -> None:
    """Leave behind what a run of stages does."""
    for name in names:
        folder = deployment.stage(name)
        for part in ("offsets", "commits"):
            os.makedirs(os.path.join(folder.checkpoint, part))
        Path(folder.checkpoint, "offsets", "0").write_text(LOG)
        deployment.changed(StageState("shop", name, since_ms=0, state=State.RUNNING), None)
        Path(folder.checkpoint, "commits", "0").write_text("v1\n{}")
        if name == "sums":
            os.makedirs(os.path.join(folder.checkpoint, "state"))


def test_what_has_run_is_no_change_afterwards(load: Load, tmp_path: Path) -> None:
    ran(Deployment(load(FILE), str(tmp_path)), "clean", "sums")
    after = Deployment(load(FILE), str(tmp_path))
    assert after.changes() == []
    assert after.prepare(["clean", "sums"], [])[1] == []


def test_a_change_that_does_not_fit_is_refused_at_its_line_before_anything_is_moved(load: Load, tmp_path: Path) -> None:
    ran(Deployment(load(FILE), str(tmp_path)), "clean", "sums")
    changed = Deployment(load(FILE.replace("'1 hour')", "'2 hours')")), str(tmp_path))
    with pytest.raises(PipelineError) as caught:
        changed.prepare(["clean", "sums"], [])
    [problem] = caught.value.problems
    assert (problem.line, problem.field) == (12, "stages[1].sql")
    assert "the checkpoint of stage sums does not fit: grouping keys" in problem.message
    assert "--reset sums" in problem.hint
    assert changed.stage("sums").has_checkpoint
    assert changed.prepare(["clean"], []), "a stage that is not run is not asked"


def test_all_that_does_not_fit_is_told_at_once(load: Load, tmp_path: Path) -> None:
    ran(Deployment(load(FILE), str(tmp_path)), "clean", "sums")
    text = FILE.replace("'1 hour')", "'2 hours')").replace("{topic: orders}", "{topic: other, as: orders}")
    with pytest.raises(PipelineError) as caught:
        Deployment(load(text), str(tmp_path)).prepare(["clean", "sums"], [])
    assert [problem.field for problem in caught.value.problems] == ["stages[0].from.topic", "stages[1].sql"]


def test_a_stage_that_is_reset_is_not_refused_and_its_checkpoint_kept(load: Load, tmp_path: Path) -> None:
    ran(Deployment(load(FILE), str(tmp_path)), "clean", "sums")
    changed = Deployment(load(FILE.replace("'1 hour')", "'2 hours')")), str(tmp_path))
    _, [line] = changed.prepare(["clean", "sums"], ["sums"])
    folder = changed.stage("sums")
    assert line == f"stage sums starts anew; its checkpoint was moved to {folder.checkpoint}.1"
    assert not folder.has_checkpoint
    assert Path(f"{folder.checkpoint}.1", "offsets", "0").read_text() == LOG
    assert changed.stage("clean").has_checkpoint
    assert [change.stage for change in changed.changes()] == ["sums"]


def test_a_stage_to_reset_that_is_not_run_is_a_mistake(load: Load, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="--reset: no stage 'sum' is run; did you mean 'sums'"):
        Deployment(load(FILE), str(tmp_path)).prepare(["sums"], ["sum"])


def test_a_replay_decides_where_a_stage_starts(load: Load, tmp_path: Path) -> None:
    loaded = load(FILE)
    deployment = Deployment(loaded, str(tmp_path))
    deployment.stage("clean").set_aside({"orders": {0: 3, 1: 4}})
    started, _ = deployment.prepare(["clean"], [])
    assert started.pipeline.stage("clean").topic_inputs[0].starting_offsets == {0: 3, 1: 4}
    assert started.pipeline.stage("sums") == loaded.pipeline.stage("sums")
    assert loaded.pipeline.stage("clean").topic_inputs[0].starting_offsets == "earliest"


def test_a_stage_that_fails_before_it_has_done_a_batch_stays_what_it_was(load: Load, tmp_path: Path) -> None:
    ran(Deployment(load(FILE), str(tmp_path)), "clean", "sums")
    text = FILE.replace("SELECT value", "SELECT upper(value) AS value")
    changed = Deployment(load(text), str(tmp_path))
    before = changed.stage("clean").deployed()
    changed.changed(StageState("shop", "clean", since_ms=0, state=State.RUNNING), None)
    assert changed.stage("clean").deployed() != before
    changed.changed(StageState("shop", "clean", since_ms=0, state=State.FAILED, error="Spark refuses"), None)
    assert changed.stage("clean").deployed() == before
    error = changed.stage("clean").last_error()
    assert error is not None
    assert error["error"] == "Spark refuses"


def test_a_stage_that_did_not_begin_is_not_noted(load: Load, tmp_path: Path) -> None:
    deployment = Deployment(load(FILE), str(tmp_path))
    for state in (State.STARTING, State.STOPPED):
        deployment.changed(StageState("shop", "clean", since_ms=0, state=state), None)
    assert deployment.stage("clean").deployed() is None


def test_a_checkpoint_without_a_record_is_refused_by_its_topics(load: Load, tmp_path: Path) -> None:
    """An earlier release left no record."""
    ran(Deployment(load(FILE), str(tmp_path)), "clean")
    os.remove(tmp_path / "shop" / "clean" / "deployed.json")
    assert Deployment(load(FILE), str(tmp_path)).prepare(["clean"], [])[1] == []
    text = FILE.replace("{topic: orders}", "{topic: other, as: orders}")
    with pytest.raises(PipelineError, match="has read the topic 'orders', not 'other'"):
        Deployment(load(text), str(tmp_path)).prepare(["clean"], [])


def test_code_that_is_laid_out_otherwise_is_no_change(load: Load, tmp_path: Path) -> None:
    text = FILE + "  - {name: code, from: {topic: orders}, python: {file: f.py, function: f}, to: [{topic: code}]}\n"

    def deployment(code: str) -> Deployment:
        (tmp_path / "f.py").write_text(code)
        loaded = load(text.replace("f.py", str(tmp_path / "f.py")))
        return Deployment(loaded, str(tmp_path))

    ran(deployment("def f(rows):\n    return rows\n"), "clean", "sums", "code")
    assert deployment("def f( rows ):  # the same\n\n    return rows\n").changes() == []
    assert [change.what for change in deployment("def f(rows):\n    return rows.distinct()\n").changes()] == ["code"]


TABLES = """\
pipeline: shop
topics:
  orders: {value: string}
  shops: {value: string, key: string}
tables:
  shops: {topic: shops}
stages:
  - name: joined
    from: {topic: orders}
    sql: SELECT orders.value FROM orders JOIN shops ON true
    to: [{topic: joined}]
  - name: files
    from: {files: in, format: csv, schema: id INT}
    sql: SELECT id FROM input
    to: [{delta: lake/files}]
"""


def test_ids_are_those_of_what_the_checkpoint_has_offsets_of(load: Load, tmp_path: Path) -> None:
    before = Deployment(load(TABLES), str(tmp_path))
    before.take_ids("c1", {"orders": "1", "shops": "2"})
    ran(before, "joined", "files")
    after = Deployment(load(TABLES), str(tmp_path))
    after.take_ids("c1", {"orders": "1", "shops": "9"})
    assert after.changes() == [], "a table's topic was made anew"
    after.take_ids("c2", {"orders": "1", "shops": "2"})
    assert [(change.stage, change.what) for change in after.changes()] == [("joined", "cluster")]


def test_brokers_that_do_not_answer_take_no_id_back(load: Load, tmp_path: Path) -> None:
    before = Deployment(load(FILE), str(tmp_path))
    before.take_ids("c1", {"orders": "1"})
    before.take_ids(None, {})
    ran(before, "clean")
    after = Deployment(load(FILE), str(tmp_path))
    after.take_ids("c1", {"orders": "2"})
    assert [change.what for change in after.changes() if change.stage == "clean"] == ["topic orders"]


@pytest.mark.parametrize(("cluster", "topics"), [(None, {}), ("c1", {})])
def test_a_run_whose_brokers_do_not_answer_keeps_the_ids_of_the_runs_before(
    load: Load, tmp_path: Path, cluster: str | None, topics: dict[str, str]
) -> None:
    first = Deployment(load(FILE), str(tmp_path))
    first.take_ids("c1", {"orders": "1"})
    ran(first, "clean")
    second = Deployment(load(FILE), str(tmp_path))
    second.take_ids(cluster, topics)
    assert [change for change in second.changes() if change.stage == "clean"] == []
    second.changed(StageState("shop", "clean", since_ms=0, state=State.RUNNING), None)
    third = Deployment(load(FILE), str(tmp_path))
    third.take_ids("c2", {"orders": "2"})
    found = [change.what for change in third.changes() if change.stage == "clean"]
    assert found == ["cluster", "topic orders"]


def test_a_checkpoint_that_begins_anew_has_the_ids_of_its_own_run_only(load: Load, tmp_path: Path) -> None:
    first = Deployment(load(FILE), str(tmp_path))
    first.take_ids("c1", {"orders": "1"})
    ran(first, "clean")
    second = Deployment(load(FILE), str(tmp_path))
    second.prepare(["clean"], ["clean"])
    ran(second, "clean")
    record = second.stage("clean").deployed()
    assert record is not None
    assert record.ids is None


def test_a_record_that_cannot_be_written_is_written_with_a_later_batch(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = Deployment(load(FILE), str(tmp_path))
    running = StageState("shop", "clean", since_ms=0, state=State.RUNNING)

    def fail(_self: LocalFiles, path: str, _data: bytes) -> None:
        raise UnavailableError(f"{path}: HDFS cannot do it now")

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "replace", fail)
        deployment.changed(running, None)
        deployment.changed(StageState("shop", "sums", since_ms=0, state=State.FAILED, error="no disk"), None)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["stage clean", "stage sums"]
    assert deployment.stage("clean").deployed() is None
    deployment.changed(running, None)
    assert deployment.stage("clean").deployed() is not None
