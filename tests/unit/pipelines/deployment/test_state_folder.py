"""The state folder: how far checkpoints are, epochs, and what a crash in the middle of a reset leaves."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from headwater.pipelines.deployment.state_folder import StageFolder, StateFolder
from headwater.pipelines.file_systems.file_system import FileSystemError

HEAD = 'v1\n{"batchWatermarkMs":5,"batchTimestampMs":0,"conf":{"spark.sql.shuffle.partitions":"6"}}\n'


@pytest.fixture
def folder(tmp_path: Path) -> StageFolder:
    return StateFolder(str(tmp_path), "shop").stage("clean")


def checkpoint(folder: StageFolder, offsets: dict[str, str], commits: tuple[int, ...] = ()) -> None:
    for name in ("offsets", "commits"):
        os.makedirs(os.path.join(folder.checkpoint, name), exist_ok=True)
    for name, text in offsets.items():
        Path(folder.checkpoint, "offsets", name).write_text(text)
    for number in commits:
        Path(folder.checkpoint, "commits", str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.mark.parametrize(
    ("files", "topics"),
    [
        ({}, set()),
        ({"0": 'v1\n{}\n{"a": {"0": 1}}', "10": 'v1\n{}\n{"b": {"0": 1}}', "9": 'v1\n{}\n{"a": {}}'}, {"b"}),
        ({"0": ""}, set()),
        ({"0": "v1\n-"}, set()),
        ({"0": 'v1\n{}\n-\n{"reservoirId": "x"}\n17\n{"a": {"0": 1}}'}, {"a"}),
        ({".0.crc": "x"}, set()),
    ],
)
def test_a_checkpoint_says_which_topics_it_has_read(
    folder: StageFolder, files: dict[str, str], topics: set[str]
) -> None:
    assert folder.progress().planned_topics() == set()
    checkpoint(folder, files)
    assert folder.progress().planned_topics() == topics


def test_a_checkpoint_says_which_batch_is_done_and_where_it_ended(folder: StageFolder) -> None:
    assert not folder.has_checkpoint
    checkpoint(
        folder, {"0": HEAD + '{"a":{"0":3}}', "1": HEAD + '{"a":{"0":7,"1":2}}', "2": HEAD + '{"a":{"0":9}}'}, (0, 1)
    )
    found = folder.progress()
    assert (found.planned, found.done, found.topics()) == (2, 1, {"a": {0: 7, 1: 2}})
    assert found.watermark_ms == 5
    assert found.conf == {"spark.sql.shuffle.partitions": "6"}
    assert found.done_at is not None
    assert folder.has_checkpoint


def test_a_reset_moves_the_checkpoint_and_keeps_every_epoch(folder: StageFolder) -> None:
    for epoch in (1, 2, 3):
        assert folder.epoch == epoch
        checkpoint(folder, {"0": f'{HEAD}{{"a":{{"0":{epoch}}}}}'})
        Path(folder.path, "deployed.json").write_text(str(epoch))
        assert folder.set_aside() == f"{folder.checkpoint}.{epoch}"
        assert not folder.has_checkpoint
        assert folder.start() is None
    assert [Path(folder.path, f"deployed.{epoch}.json").read_text() for epoch in (1, 2, 3)] == ["1", "2", "3"]
    for epoch in (1, 2, 3):
        assert Path(f"{folder.checkpoint}.{epoch}", "offsets", "0").read_text().endswith(f'{{"a":{{"0":{epoch}}}}}')


def test_a_stage_without_a_checkpoint_is_reset_by_its_start_alone(folder: StageFolder) -> None:
    assert folder.set_aside({"a": {0: 5}}) is None
    assert folder.epoch == 1
    assert folder.start() == {"a": {0: 5}}


def test_a_start_holds_for_one_epoch_only(folder: StageFolder) -> None:
    checkpoint(folder, {"0": HEAD + '{"a":{"0":1}}'})
    folder.set_aside({"a": {0: 5, 1: 7}})
    assert folder.start() == {"a": {0: 5, 1: 7}}
    checkpoint(folder, {"0": HEAD + '{"a":{"0":6}}'})
    assert folder.start() == {"a": {0: 5, 1: 7}}
    folder.set_aside()
    assert folder.start() is None


def test_a_crash_before_the_checkpoint_is_moved_leaves_the_stage_as_it_was(
    folder: StageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(folder, {"0": HEAD + '{"a":{"0":1}}'})

    def crash(source: str, target: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            folder.set_aside({"a": {0: 5}})
    assert folder.has_checkpoint
    assert folder.start() is None, "the start is that of the next epoch"
    folder.set_aside()
    assert folder.start() is None, "a reset does not take up a replay that did not come about"


def test_errors_are_kept_until_a_run_goes_well(folder: StageFolder) -> None:
    assert folder.last_error() is None
    folder.note_error("no broker", 12.5)
    assert folder.last_error() == {"at": 12.5, "error": "no broker"}
    folder.note_error(None, 0)
    assert folder.last_error() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 9}'])
def test_a_record_that_cannot_be_read_is_none(folder: StageFolder, text: str) -> None:
    os.makedirs(folder.path)
    Path(folder.path, "deployed.json").write_text(text)
    assert folder.deployed() is None


def test_what_has_run_is_listed(tmp_path: Path) -> None:
    for name in ("clean", "sums"):
        (tmp_path / "shop" / name / "checkpoint").mkdir(parents=True)
    (tmp_path / "shop" / "lock").write_text("")
    (tmp_path / "shop" / "spark.log").write_text("")
    (tmp_path / "other").mkdir()
    assert StateFolder.pipelines(str(tmp_path)) == ["shop"]
    assert StateFolder(str(tmp_path), "shop").stages() == ["clean", "sums"]
    assert StateFolder.pipelines(str(tmp_path / "none")) == []
    assert StateFolder(str(tmp_path), "none").stages() == []


def test_a_pipelines_lock_id_is_made_once(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "shop")
    found: set[str] = set()
    threads = [
        threading.Thread(target=lambda: found.add(StateFolder(str(tmp_path), "shop").lock_id())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {folder.lock_id()}
    assert StateFolder.pipelines_at(str(tmp_path)) == ["shop"]
    Path(folder.path, "lock_id").write_text("changed")
    with pytest.raises(FileSystemError, match="holds no id of a pipeline's runs"):
        folder.lock_id()


def test_a_checkpoint_says_its_id_and_spark_is_given_a_place_of_this_machine(folder: StageFolder) -> None:
    with pytest.raises(FileSystemError, match="has no metadata"):
        folder.checkpoint_id()
    os.makedirs(folder.checkpoint)
    Path(folder.checkpoint, "metadata").write_text('{"id":"7f"}')
    assert folder.checkpoint_id() == "7f"
    assert folder.location == f"file:{folder.checkpoint}"
