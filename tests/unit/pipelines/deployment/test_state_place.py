"""The place of checkpoints: nothing starts anew in silence, and a move that was cut short goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.pipelines.deployment import state_place
from headwater.pipelines.deployment.state_folder import StateFolder
from headwater.pipelines.deployment.state_place import known_place, require_supported, settle
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.file_systems.file_system import walk
from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.file_systems.options import FileSystemOptions

FILES = LocalFiles()
OFFSETS = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"orders":{"0":7}}'


class Killed(BaseException):
    """Ends a process in the middle."""


def place(state: Path, checkpoints: Path | None = None, *, move: bool = False) -> list[str]:
    """Begin a run; returns what it said."""
    said: list[str] = []
    settle(
        str(state),
        "" if checkpoints is None else str(checkpoints),
        "shop",
        FileSystemOptions(),
        move=move,
        say=said.append,
    )
    return said


def run(root: Path, stage: str = "clean") -> None:
    """Leave what a run leaves: a checkpoint with a batch, and records."""
    folder = root / "shop" / stage
    for name in ("offsets", "commits"):
        (folder / "checkpoint" / name).mkdir(parents=True, exist_ok=True)
        (folder / "checkpoint" / name / "0").write_text(OFFSETS)
        (folder / "checkpoint" / name / ".0.crc").write_text("checksum")
    (folder / "checkpoint" / "state").mkdir()
    (folder / "checkpoint" / "state" / "0.delta").write_bytes(bytes(3_000_000))
    (folder / "deployed.json").write_text("{}")


def offsets(root: Path, stage: str = "clean") -> dict[str, dict[int, int]]:
    return StateFolder(str(root), "shop").stage(stage).progress().topics()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def test_a_new_pipeline_begins_where_it_is_told(state: Path, lake: Path) -> None:
    assert place(state) == []
    assert known_place(str(state), "shop") is None
    assert place(state, lake) == []
    assert known_place(str(state), "shop") == str(lake)
    lock_id = StateFolder(str(lake), "shop").lock_id()
    assert place(state, lake) == []
    assert StateFolder(str(lake), "shop").lock_id() == lock_id


def test_another_machine_takes_the_pipeline_over(tmp_path: Path, state: Path, lake: Path) -> None:
    place(state, lake)
    run(lake)
    other = tmp_path / "other machine"
    assert place(other, lake) == []
    assert known_place(str(other), "shop") == str(lake)


def test_local_state_is_not_forgotten(state: Path, lake: Path) -> None:
    run(state)
    with pytest.raises(
        PipelineFailed, match=rf"the state of shop is in {state} \(clean\).*--move takes the state along"
    ):
        place(state, lake)
    assert not lake.exists()


def test_a_move_takes_everything_along_and_back(state: Path, lake: Path) -> None:
    run(state)
    run(state, "sums")
    (state / "shop" / "lock").write_text("1")
    lock_id = StateFolder(str(state), "shop").lock_id()
    assert len(place(state, lake, move=True)) == 2
    assert offsets(lake) == offsets(lake, "sums") == {"orders": {0: 7}}
    assert StateFolder(str(lake), "shop").lock_id() == lock_id
    assert StateFolder(str(state), "shop").folders() == []
    assert (state / "shop" / "moved.1" / "clean" / "deployed.json").exists()
    assert (state / "shop" / "lock").exists()
    copied = [name for name, _ in walk(FILES, f"{lake}/shop/clean")]
    assert copied == ["checkpoint/commits/0", "checkpoint/offsets/0", "checkpoint/state/0.delta", "deployed.json"]
    assert place(state, lake, move=True) == [], "a repetition changes nothing"
    with pytest.raises(PipelineFailed, match=f"the state of shop is in {lake}"):
        place(state)
    assert len(place(state, move=True)) == 2
    assert offsets(state) == {"orders": {0: 7}}
    assert StateFolder(str(state), "shop").lock_id() == lock_id
    assert known_place(str(state), "shop") is None
    assert len(place(state, lake, move=True)) == 2
    assert (state / "shop" / "moved.2" / "clean").exists()


def test_two_states_are_never_merged(state: Path, lake: Path) -> None:
    run(state)
    run(lake)
    for move in (False, True):
        with pytest.raises(PipelineFailed, match="shop has state in"):
            place(state, lake, move=move)
    assert offsets(state) == offsets(lake)


@pytest.mark.parametrize("step", range(24))
def test_a_move_that_is_killed_goes_on(state: Path, lake: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run(state)
    run(state, "sums")
    lock_id = StateFolder(str(state), "shop").lock_id()
    left = step

    def dying(name: str) -> None:
        real = getattr(LocalFiles, name)

        def call(self: LocalFiles, *given: object) -> object:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return real(self, *given)

        monkeypatch.setattr(LocalFiles, name, call)

    with monkeypatch.context():
        for name in ("create", "replace", "writer", "rename", "delete"):
            dying(name)
        try:
            place(state, lake, move=True)
        except Killed:
            is_killed = True
        else:
            is_killed = False
        monkeypatch.undo()
    if is_killed:
        whole = {"clean", "sums"}
        for there in (None, lake):
            # A run without --move goes on with the whole state, or is refused.
            try:
                place(state, there)
            except PipelineFailed as refused:
                assert "--move" in str(refused)
                continue
            assert set(StateFolder(str(there or state), "shop").folders()) == whole
    place(state, lake, move=True)
    assert offsets(lake) == offsets(lake, "sums") == {"orders": {0: 7}}
    assert StateFolder(str(lake), "shop").lock_id() == lock_id
    assert StateFolder(str(state), "shop").folders() == []
    assert not (lake / "shop" / "moving.json").exists()
    place(state, lake)


def test_a_run_between_two_attempts_of_a_move_counts(state: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(state)
    (state / "shop" / "clean" / "checkpoint" / "offsets" / "1").write_text(OFFSETS.replace("7", "9"))

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(state_place, "_write_mark", die)
        place(state, lake, move=True)
    assert StateFolder(str(lake), "shop").stage("clean").progress().planned == 1
    place(state)
    StateFolder(str(state), "shop").stage("clean").set_aside()
    run(state)
    place(state, lake, move=True)
    assert offsets(lake) == {"orders": {0: 7}}
    assert (lake / "shop" / "clean" / "checkpoint.1" / "offsets" / "1").exists()


def feed(root: Path) -> None:
    """A stage that reads a database: increments 1 and 2 were found by Spark, 3 was not."""
    run(root)
    checkpoint = root / "shop" / "clean" / "checkpoint"
    folder = checkpoint / "headwater" / "input-0"
    for number in (1, 2, 3):
        (folder / "increments" / f"{number:010}").mkdir(parents=True)
        (folder / "increments" / f"{number:010}" / "part-0.parquet").write_text(str(number))
    (folder / "position").write_text("{}")
    (checkpoint / "sources" / "0").mkdir(parents=True)
    lines = [f'{{"path":"file://{folder}/increments/{number:010}/part-0.parquet","batchId":0}}' for number in (1, 2)]
    (checkpoint / "sources" / "0" / "0").write_text("\n".join(["v1", *lines]))


def test_increments_of_a_database_that_were_read_stay_behind(state: Path, lake: Path) -> None:
    feed(state)
    place(state, lake, move=True)
    found = [entry.name for entry in FILES.list(f"{lake}/shop/clean/checkpoint/headwater/input-0/increments")]
    assert found == ["0000000003"]
    assert (lake / "shop" / "clean" / "checkpoint" / "headwater" / "input-0" / "position").exists()


def test_a_begun_batch_of_a_database_is_not_moved(state: Path, lake: Path) -> None:
    feed(state)
    (state / "shop" / "clean" / "checkpoint" / "offsets" / "1").write_text(OFFSETS)
    with pytest.raises(PipelineFailed, match="stage clean has begun micro-batch 1"):
        place(state, lake, move=True)
    assert not lake.exists()
    assert place(state) == []


@pytest.mark.parametrize("url", ["s3a://bucket/a", "abfss://x@y/a", "gopher://a"])
def test_a_place_without_single_commits_is_refused(url: str) -> None:
    with pytest.raises(PipelineFailed, match="a commit there could replace another"):
        require_supported(url)


def test_a_damaged_memory_of_the_place_is_no_new_start(state: Path) -> None:
    (state / "shop").mkdir(parents=True)
    (state / "shop" / "checkpoints.json").write_text("[]")
    with pytest.raises(PipelineFailed, match="damaged"):
        place(state)
