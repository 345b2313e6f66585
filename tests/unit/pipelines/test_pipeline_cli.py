from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.cli.main import main


@pytest.fixture
def pipeline_file(tmp_path: Path, correct: str) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(correct)
    (tmp_path / "order.json").write_text('{"type": "object", "properties": {"amount": {"type": "number"}}}')
    return path


def test_validate_prints_the_plan(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "validate", str(pipeline_file)]) == 0
    out = capsys.readouterr().out
    assert "stage 2: totals (after clean)" in out
    assert "readers of theirs need isolation.level=read_committed" in out


def test_validate_prints_the_plan_as_json(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "validate", str(pipeline_file), "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [stage["name"] for stage in plan["stages"]] == ["clean", "totals"]
    assert plan["warnings"] == []


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
