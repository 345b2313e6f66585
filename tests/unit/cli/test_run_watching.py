"""Options by which a run is watched, and what it shows."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.cli.pipeline.run_display import RunDisplay, StateLines, no_report, report, summary
from headwater.cli.pipeline.run_watching import watching
from headwater.cli.shell.errors import CliError
from headwater.pipelines.monitoring.progress import StageProgress, StageTotals
from headwater.pipelines.monitoring.stage_state import StageState, State, TopicLag

CLIENT = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def given(**more: Any) -> dict[str, Any]:
    options = {"metrics_port": None, "metrics_host": "127.0.0.1", "status": True, "openlineage": None, "quiet": False}
    return options | more


def names(listeners: Any) -> list[str]:
    return [type(each).__name__ for each in listeners]


def test_a_run_tells_its_lag_and_its_status_unless_told_otherwise() -> None:
    with watching(CLIENT, given()) as watch:
        assert names(watch.listeners) == ["LagSampler", "StatusTopic", "StateLines"]
        assert watch.on_progress is report
    with watching(CLIENT, given(status=False, quiet=True)) as watch:
        assert names(watch.listeners) == ["LagSampler"]
        assert watch.on_progress is no_report


def test_metrics_are_served_while_the_run_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(CLIENT, given(metrics_port=0)) as watch:
        assert "MetricsEndpoint" in names(watch.listeners)
        url = capsys.readouterr().err.removeprefix("metrics: ").strip()
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert "headwater_pipeline_rows_total" in answer.read().decode()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=10)


def test_a_port_that_is_taken_is_told_before_anything_begins() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(CliError, match=f"cannot listen on 127.0.0.1:{port}"),
            watching(CLIENT, given(metrics_port=port)),
        ):
            pytest.fail("not reached")


@pytest.mark.parametrize("target", ["ftp://host/x", "no/such/folder/lineage.jsonl"])
def test_a_receiver_of_lineage_that_cannot_be_is_told_before_anything_begins(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CliError, match=target.partition(":")[0]), watching(CLIENT, given(openlineage=target)):
        pytest.fail("not reached")


def test_lineage_goes_to_a_file_that_is_named(tmp_path: Path) -> None:
    with watching(CLIENT, given(openlineage=str(tmp_path / "lineage.jsonl"))) as watch:
        assert "LineageEmitter" in names(watch.listeners)
    assert (tmp_path / "lineage.jsonl").exists()


def stage() -> StageState:
    found = StageState("flights", "clean", State.RUNNING, totals=StageTotals("clean"))
    found.add_progress(StageProgress("clean", 3, 30, 10.0, 3000, "", 0))
    found.lag = {"flights": TopicLag(70, None)}
    return found


def test_elsewhere_states_before_the_first_micro_batch_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines = StateLines()
    for state in (State.STARTING, State.STARTING, State.RESTARTING, State.RUNNING, State.STOPPED):
        lines.changed(StageState("flights", "clean", state), None)
    lines.changed(stage(), None)  # it has had a micro-batch: those are told
    assert capsys.readouterr().err.splitlines() == ["clean: starting", "clean: restarting", "clean: running"]


def test_a_terminal_gets_a_bar_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    display = RunDisplay()
    info: Any = SimpleNamespace(stages=("clean", "delays"))
    watch: Any = None
    display.began(info, watch)
    display.changed(stage(), None)
    display.ended()
    display.changed(stage(), None)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "clean" in captured.err
    assert "delays" in captured.err
    assert "30 rows, 10/s" in " ".join(captured.err.split())


def test_a_narrow_terminal_cuts_the_numbers_and_nothing_stands_among_the_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with open(terminal, "w", encoding="utf-8") as opened:
        monkeypatch.setattr("sys.stderr", opened)
        monkeypatch.setattr("sys.stdout", opened)
        display = RunDisplay()
        info: Any = SimpleNamespace(stages=("clean", "delays"))
        watch: Any = None
        display.began(info, watch)
        display.changed(stage(), None)
        print("from a stage's function")
        display.changed(stage(), None)
        display.ended()
        monkeypatch.undo()
    lines = screen(all_written(controller))
    assert lines[0] == "from a stage's function"
    assert re.fullmatch(r"clean  running +\S{20} 30 rows, 10/s, lag 70.*", lines[1])
    assert re.fullmatch(r"delays starting +\S{20}", lines[2])
    assert all(len(line) <= 60 for line in lines)
    assert lines[3:] == []


def all_written(controller: int) -> str:
    """What was written to a terminal that is closed."""
    pieces = []
    with open(controller, "rb", buffering=0) as file, contextlib.suppress(OSError):  # its way to say that this is all
        while piece := file.read(1 << 16):
            pieces.append(piece)
    return b"".join(pieces).decode()


def screen(written: str) -> list[str]:
    """What a terminal shows of what was written to it: lines without trailing spaces, as far as something stands."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", written):
        if token == "\r":
            column = 0
        elif token == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif token.startswith("\x1b"):
            if token.endswith("A"):
                row -= int(token[2:-1])
            elif token.endswith("K"):
                lines[row] = ""
        else:
            lines[row] = lines[row].ljust(column)[:column] + token + lines[row][column + len(token) :]
            column += len(token)
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]


def test_without_a_terminal_a_micro_batch_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = stage()
    assert found.last is not None
    report(found.last, found.totals)
    assert capsys.readouterr().err == "clean: batch 3, 30 rows in 3.0 s (10 rows/s), 30 in all\n"


def test_a_summary_counts_what_was_not_met() -> None:
    totals = StageTotals("clean")
    totals.add_outcome(5, 1, {"paid": 2}, 3)
    assert summary(totals) == "clean: 0 rows read, 5 written, 3 dead letters, 1 not decodable, 2 not paid, 0 late"
