from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from headwater.cli.main import main
from headwater.cli.pipeline import checkpoint_place
from headwater.cli.pipeline.preview import print_preview
from headwater.pipelines.deployment.deployment import Deployment
from headwater.pipelines.monitoring.stage_state import StageState, State
from headwater.pipelines.preview.stage_preview import Preview
from headwater.pipelines.sources.table_gaps import TableGap
from headwater.pipelines.validation.pipeline_file import load
from headwater.settings import Settings


@pytest.fixture
def pipeline_file(tmp_path: Path, correct: str) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(correct)
    fields = '"amount": {"type": "number"}, "shop": {"type": "string"}, "at": {"type": "string", "format": "date-time"}'
    (tmp_path / "order.json").write_text(f'{{"type": "object", "properties": {{{fields}}}}}')
    return path


def test_validate_says_that_a_pipeline_is_correct(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "validate", str(pipeline_file)]) == 0
    assert capsys.readouterr().out == f"{pipeline_file} is a correct pipeline: orders, with the stages clean, totals\n"
    assert main(["pipeline", "validate", str(pipeline_file), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["pipeline"], found["stages"], found["warnings"]) == ("orders", ["clean", "totals"], [])


def test_plan_prints_what_a_run_would_do(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "plan", str(pipeline_file), "--state", str(pipeline_file.parent)]) == 0
    out = capsys.readouterr().out
    assert "stage 2: totals (after clean)" in out
    assert "readers of theirs need isolation.level=read_committed" in out
    assert "changes since" not in out, "it has never run"


def test_plan_prints_which_rows_a_sink_receives(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = pipeline_file.read_text().replace(
        "{topic: totals, key: shop}", "{topic: totals, key: shop, when: amount > 9}"
    )
    pipeline_file.write_text(text)
    plan = ["pipeline", "plan", str(pipeline_file), "--state", str(pipeline_file.parent)]
    assert main(plan) == 0
    assert "  writes   topic totals, key shop, when amount > 9, exactly-once\n" in capsys.readouterr().out
    assert main([*plan, "-o", "json"]) == 0
    clean, totals = json.loads(capsys.readouterr().out)["stages"]
    assert [sink["when"] for sink in (*clean["writes"], *totals["writes"])] == [None, None, "amount > 9"]


def test_plan_prints_it_as_json(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "plan", str(pipeline_file), "--state", str(pipeline_file.parent), "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [stage["name"] for stage in plan["stages"]] == ["clean", "totals"]
    assert plan["warnings"] == []
    assert plan["deployed"] == {}
    assert [(each["stage"], each["effect"]) for each in plan["changes"]] == [
        ("clean", "new state"),
        ("totals", "new state"),
    ]


def deploy(file: Path, stage: str, batch: int = 3) -> None:
    """Leave behind what a run of a stage does."""
    deployment = Deployment(load(str(file)), str(file.parent / "state"))
    folder = deployment.stage(stage)
    for name in ("offsets", "commits"):
        Path(folder.checkpoint, name).mkdir(parents=True)
        text = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"orders":{"0":7}}' if name == "offsets" else "v1\n{}"
        Path(folder.checkpoint, name, str(batch)).write_text(text)
    (file.parent / "state" / "orders" / "lock").write_text("1\n")
    deployment.changed(StageState("orders", stage, since_ms=0, state=State.RUNNING), None)


def test_plan_tells_what_has_changed_since_a_stage_was_run(
    pipeline_file: Path, correct: str, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy(pipeline_file, "clean")
    state = ["--state", str(pipeline_file.parent / "state")]
    assert main(["pipeline", "plan", str(pipeline_file), *state]) == 0
    out = capsys.readouterr().out
    assert "  clean: no changes; it continues after micro-batch 3\n" in out
    assert "  totals: new state: new stage: it has no checkpoint and starts with orders_clean from earliest\n" in out

    pipeline_file.write_text(
        correct.replace("{topic: orders}", "{topic: orders_old, as: orders}").replace(
            "  orders: {", "  orders_old: {value: json, schema: order.json}\n  orders: {"
        )
    )
    assert main(["pipeline", "plan", str(pipeline_file), *state]) == 0
    assert "clean: needs reset: other input: the checkpoint holds the place in topic 'orders', not in topic" in (
        capsys.readouterr().out
    )


def test_preview_says_what_a_table_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    gap = TableGap("shops", "s", 1, 2, 17, "the field qty is no INT")
    print_preview(Preview("clean", keeps_state=False, gaps=[gap]), "earliest")
    said = "table shops lacks 1 record of topic s that cannot be decoded; the first is partition 2, offset 17"
    assert capsys.readouterr().out.splitlines()[1:] == [f"misses  {said}: the field qty is no INT"]


def test_init_writes_a_pipeline_that_is_correct_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "My shop"
    assert main(["pipeline", "init", str(folder)]) == 0
    assert main(["pipeline", "validate", str(folder / "pipeline.yaml")]) == 0
    captured = capsys.readouterr()
    assert "is a correct pipeline: my_shop, with the stages clean, sales" in captured.out
    assert "warning" not in captured.err
    (folder / "pipeline.yaml").write_text("mine")
    (folder / "schemas" / "order.json").unlink()
    assert main(["pipeline", "init", str(folder)]) == 2
    assert (folder / "pipeline.yaml").read_text() == "mine"
    assert not (folder / "schemas" / "order.json").exists(), "nothing is written beside it"
    assert main(["pipeline", "init", str(tmp_path / "other"), "--name", "no name"]) == 2


@pytest.mark.parametrize("template", ["orders", "cdc", "sessions", "enrich"])
def test_init_writes_the_template_that_is_chosen_and_prints_how_to_try_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], template: str
) -> None:
    folder = tmp_path / "shop"
    assert main(["pipeline", "init", str(folder), "--template", template]) == 0
    commands = capsys.readouterr().err.partition("next:\n")[2].splitlines()
    assert commands[0] == f"  headwater pipeline test {folder}/pipeline.yaml"
    samples = [line.split()[3] for line in commands if line.startswith("  headwater produce ")]
    assert samples
    assert all(Path(path).is_file() for path in samples)
    assert main(["pipeline", "validate", str(folder / "pipeline.yaml")]) == 0
    assert "warning" not in capsys.readouterr().err


def test_init_lists_the_templates_when_one_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "init", str(tmp_path / "shop"), "--template", "cdcs"]) == 2
    assert "'cdcs' is not one of 'orders', 'cdc', 'sessions', 'enrich'" in capsys.readouterr().err
    assert not (tmp_path / "shop").exists()


def test_status_tells_of_a_pipeline_that_does_not_run_without_a_broker(
    pipeline_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy(pipeline_file, "clean")
    Deployment(load(str(pipeline_file)), str(pipeline_file.parent / "state")).stage("clean").note_error("no disk", 5.0)
    state = ["--state", str(pipeline_file.parent / "state"), "-b", "127.0.0.1:1"]
    for named in ([], ["orders"], [str(pipeline_file)]):
        assert main(["pipeline", "status", *named, *state]) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith("orders is not running\n")
        assert "clean: failed at 1970-01-01T00:00:05.000+00:00: no disk" in captured.out
        assert "the lag is unknown" in captured.err
    assert main(["pipeline", "status", "orders", *state, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["alive"], found["process"]) == (False, None)
    [stage] = found["stages"]
    assert (stage["batch"], stage["offsets"], stage["lag"]) == (3, {"orders": {"0": 7}}, None)


def test_status_of_what_has_never_run_says_what_has(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deploy(pipeline_file, "clean")
    arguments = ["--state", str(pipeline_file.parent / "state"), "-b", "127.0.0.1:1"]
    assert main(["pipeline", "status", "ordres", *arguments]) == 2
    assert "(those that have: orders)" in capsys.readouterr().err
    assert main(["pipeline", "status", "no/name", *arguments]) == 2


def test_stop_has_nothing_to_do_where_nothing_runs(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The process id in the lock is that of a run before: it must get no signal."""
    deploy(pipeline_file, "clean")
    assert main(["pipeline", "stop", "orders", "--state", str(pipeline_file.parent / "state")]) == 0
    assert capsys.readouterr().err == "orders is not running\n"


def test_stop_signals_no_process_that_does_not_hold_the_lock(
    pipeline_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy(pipeline_file, "clean")
    with open(pipeline_file.parent / "state" / "orders" / "lock", "r+", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["pipeline", "stop", "orders", "--state", str(pipeline_file.parent / "state")]) == 1
    assert "its process is unknown" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["soon", "17", "{}"])
def test_a_replay_from_no_place_is_exit_code_2(
    pipeline_file: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "replay", str(pipeline_file), "--from", place, "-b", "127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_mistakes_are_lines_on_stderr_and_exit_code_2(
    pipeline_file: Path, correct: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline_file.write_text(correct.replace("from: {topic: orders}", "form: {topic: orders}"))
    assert main(["pipeline", "validate", str(pipeline_file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 2
    assert f"{pipeline_file}:8:5: stages[0].form: unknown field 'form'; did you mean 'from'?" in captured.err
    assert "Traceback" not in captured.err


def test_a_file_that_does_not_exist_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "validate", str(tmp_path / "none.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_malformed_set_is_exit_code_2(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "validate", str(pipeline_file), "--set", "lake"]) == 2
    assert "name=value" in capsys.readouterr().err


def test_warnings_go_to_stderr_and_do_not_fail(
    pipeline_file: Path, correct: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline_file.write_text(correct.replace("sql: SELECT * FROM orders\n", "sql: SELEC * FRM orders\n"))
    assert main(["pipeline", "validate", str(pipeline_file)]) == 0
    assert "warning: " in capsys.readouterr().err


def test_no_broker_is_one_line_and_exit_code_1(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "run", str(pipeline_file), "-b", "127.0.0.1:1"]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "127.0.0.1:1" in captured.err


def test_the_place_of_checkpoints_is_of_the_command_line_the_file_the_settings_or_the_last_run(
    pipeline_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"

    def batches(root: Path, number: int) -> str:
        folder = Deployment(load(str(pipeline_file)), str(root)).stage("clean")
        for name in ("offsets", "commits"):
            Path(folder.checkpoint, name).mkdir(parents=True)
            Path(folder.checkpoint, name, str(number)).write_text('v1\n{}\n{"orders":{"0":7}}')
        return str(root)

    def batch(*more: str) -> int | None:
        assert main(["pipeline", "plan", str(pipeline_file), "--state", str(state), "-o", "json", *more]) == 0
        found = json.loads(capsys.readouterr().out)["deployed"].get("clean")
        return None if found is None else found["batch"]

    given, in_file, setting, last = (batches(tmp_path / str(n), n) for n in (1, 2, 3, 4))
    assert batch() is None
    (state / "orders").mkdir(parents=True)
    (state / "orders" / "checkpoints.json").write_text(json.dumps({"checkpoints": last, "lock_id": ""}))
    assert batch() == 4
    monkeypatch.setattr(checkpoint_place, "settings", lambda: Settings(checkpoints=setting))
    assert batch() == 3
    pipeline_file.write_text(f"checkpoints: file://{in_file}\n{pipeline_file.read_text()}")
    assert batch() == 2
    assert batch("--checkpoints", given) == 1
    assert batch("--checkpoints", "") is None
