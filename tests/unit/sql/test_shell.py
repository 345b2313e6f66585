"""The shell's loop: what ends an input, what ends the shell, and what Ctrl-C does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headwater.cli.shell.errors import CliError
from headwater.cli.shell.termination import Terminated
from headwater.cli.sql.shell import Shell
from headwater.pipelines.sql.statement_errors import StatementError
from headwater.pipelines.sql_text.scanner import Statement


class Typed:
    """A user: inputs, and exceptions that stand for keys."""

    def __init__(self, *inputs: str | BaseException) -> None:
        self._inputs = list(inputs)

    def read(self) -> str:
        if not self._inputs:
            raise EOFError
        given = self._inputs.pop(0)
        if isinstance(given, BaseException):
            raise given
        return given


class Run:
    def __init__(self, ends: bool | BaseException) -> None:
        self.cancelled = False
        self._ends = ends

    def cancel(self) -> None:
        self.cancelled = True

    def wait(self, _seconds: float) -> bool:
        if isinstance(self._ends, BaseException):
            raise self._ends
        return self._ends


class Executor:
    """Statements whose outcome is that of `results`, in order: a number of rows, or an exception."""

    def __init__(self, *results: int | BaseException | None, ends: bool | BaseException = True) -> None:
        self._results = list(results)
        self.started: list[str] = []
        self.runs: list[Run] = []
        self._ends = ends

    def start(self, statement: Statement) -> Run:
        self.started.append(statement.text)
        self.runs.append(Run(self._ends))
        return self.runs[-1]

    def show(self, _run: Run) -> int | None:
        result = self._results.pop(0)
        if isinstance(result, BaseException):
            raise result
        return result


@pytest.fixture
def play(capsys: pytest.CaptureFixture[str]) -> Callable[[Sequence[str | BaseException], Executor], list[str]]:
    def run(inputs: Sequence[str | BaseException], executor: Executor) -> list[str]:
        given: Any = executor
        Shell(Typed(*inputs), given, clock=lambda: 0.0).run()
        return capsys.readouterr().err.splitlines()

    return run


def test_each_statement_has_its_time_and_rows(play: Any) -> None:
    executor = Executor(1, 2, None)
    assert play(["SELECT 1; SELECT 2;", "SET a=b;"], executor) == ["1 row in 0.00 s", "2 rows in 0.00 s", "0.00 s"]
    assert executor.started == ["SELECT 1", "SELECT 2", "SET a=b"]


def test_a_failed_statement_ends_its_input_and_not_the_shell(play: Any) -> None:
    executor = Executor(StatementError("there is no column 'a'", (2, 3)), OSError("no\n broker"), 1)
    told = play(["SELECT a; SELECT 2;", "SELECT 3;", "SELECT 4;"], executor)
    assert told == ["headwater: line 2, column 3: there is no column 'a'", "headwater: no broker", "1 row in 0.00 s"]
    assert executor.started == ["SELECT a", "SELECT 3", "SELECT 4"]


@pytest.mark.parametrize("word", ["exit", "quit;", " EXIT ; "])
def test_a_word_ends_the_shell(play: Any, word: str) -> None:
    executor = Executor()
    assert play([word, "SELECT 1;"], executor) == []
    assert executor.started == []


def test_ctrl_c_at_the_prompt_drops_the_input_only(play: Any) -> None:
    executor = Executor(1)
    play([KeyboardInterrupt(), "SELECT 1;"], executor)
    assert executor.started == ["SELECT 1"]


def test_ctrl_c_cancels_the_statement_and_the_prompt_comes_back(play: Any) -> None:
    executor = Executor(KeyboardInterrupt(), 1)
    told = play(["SELECT 1; SELECT 2;", "SELECT 3;"], executor)
    assert told[1:] == ["the statement is cancelled", "1 row in 0.00 s"]
    assert executor.started == ["SELECT 1", "SELECT 3"]
    assert [run.cancelled for run in executor.runs] == [True, False]


@pytest.mark.parametrize("ends", [False, KeyboardInterrupt()])
def test_a_second_ctrl_c_says_what_may_still_commit(play: Any, ends: bool | BaseException) -> None:
    executor = Executor(KeyboardInterrupt(), KeyboardInterrupt(), ends=ends)
    told = play(["INSERT INTO t SELECT 1;", "SELECT 1;"], executor)
    assert told[1] == "the statement has not ended yet: its INSERT may still commit; look before you repeat it"
    assert told[3] == "the statement has not ended yet: it goes on being cancelled, and changes nothing"


def test_sigterm_ends_the_shell_while_a_statement_runs_and_at_the_prompt() -> None:
    for inputs, executor in (([Terminated()], Executor()), (["SELECT 1;"], Executor(Terminated()))):
        given: Any = executor
        typed: Sequence[Any] = inputs
        with pytest.raises(Terminated):
            Shell(Typed(*typed), given).run()


def test_an_endless_input_is_refused(play: Any) -> None:
    executor = Executor()
    told = play(["x" * (1 << 20) + ";;"], executor)
    assert len(told) == 1
    assert "run it as a file with -f" in told[0]


def test_the_shell_ends_with_its_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.cli.sql.shell.lost_jvm", lambda: "Spark's Java process has ended: SIGKILL")
    given: Any = Executor(OSError("connection refused"))
    with pytest.raises(CliError, match="SIGKILL"):
        Shell(Typed("SELECT 1;"), given).run()
