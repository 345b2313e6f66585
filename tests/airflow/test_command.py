"""A task's command: its messages, its output, and its end with all that it started, however the task ends."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import headwater_command
import pytest
from headwater_command import Command, CommandError, CommandMissingError, client_properties

from tests.airflow.airflow_home import ROOT, group_members, wait_until

pytestmark = pytest.mark.slow

# It ends at SIGTERM as slowly as it likes, and has a child that ends at none.
STUBBORN = """
echo started $$ >&2
sh -c 'trap "" TERM; echo $$ > child; while :; do sleep 0.1; done' &
trap "" TERM
while :; do sleep 0.1; done
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a command on PATH; its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(text: str) -> str:
        path = tmp_path / "headwater"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path.name

    return make


def test_messages_are_logged_and_the_output_is_the_result(script: Callable[[str], str]) -> None:
    lines: list[str] = []
    name = script('echo "loading $1" >&2; echo "{\\"rows\\": $ROWS}"; echo "path=$PYTHONPATH"')
    command = Command([name, "flights"], lines.append, {"ROWS": "7"})
    assert command.run() == '{"rows": 7}\npath=\n'
    assert lines == ["loading flights"]


def test_a_failure_has_the_exit_code_and_the_last_line(script: Callable[[str], str]) -> None:
    with pytest.raises(CommandError, match=r"^no such topic$") as raised:
        Command([script("echo first >&2; echo no such topic >&2; exit 2"), "load"], print).run()
    assert raised.value.exit_code == 2
    with pytest.raises(CommandError, match="exit code 3"):
        Command([script("exit 3")], print).run()
    with pytest.raises(CommandError, match="ended by SIGKILL"):
        Command([script("kill -9 $$")], print).run()


def test_a_missing_command_is_one_clear_line() -> None:
    with pytest.raises(CommandMissingError, match="no command 'headwater-not-there' on this worker's PATH") as raised:
        Command(["headwater-not-there", "load"], print).run()
    assert "install Headwater" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_stop_ends_the_command_and_what_it_started(
    script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headwater_command, "GRACE_S", 0.3)
    started: list[int] = []
    command = Command([script(STUBBORN)], lambda line: started.append(int(line.split()[1])))
    failures: list[CommandError] = []

    def run() -> None:
        with pytest.raises(CommandError) as raised:
            command.run()
        failures.append(raised.value)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: started and (tmp_path / "child").exists(), 30, lambda: "the command did not start")
    assert len(group_members(started[0])) >= 2
    command.stop()
    thread.join(30)
    assert [failure.exit_code for failure in failures] == [-signal.SIGKILL]
    wait_until(lambda: not group_members(started[0]), 30, lambda: "processes were left behind")


def test_a_time_limit_ends_the_command(
    script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headwater_command, "GRACE_S", 0.3)
    started: list[int] = []
    name = script(STUBBORN)

    def out_of_time(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, out_of_time)  # as Airflow does it with SIGALRM, which pytest-timeout has
    try:
        main = threading.main_thread().ident
        assert main is not None

        def limit() -> None:
            wait_until(lambda: started and (tmp_path / "child").exists(), 30, lambda: "the command did not start")
            signal.pthread_kill(main, signal.SIGUSR1)

        threading.Thread(target=limit).start()
        with pytest.raises(TimeoutError):
            Command([name], lambda line: started.append(int(line.split()[1]))).run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    wait_until(lambda: not group_members(started[0]), 30, lambda: "processes were left behind")


def test_a_task_that_is_killed_outright_takes_the_command_with_it(script: Callable[[str], str], tmp_path: Path) -> None:
    name = script('echo $$ > command; trap "exit 0" TERM; while :; do sleep 0.1; done')
    code = f"from headwater_command import Command; Command([{name!r}], print).run()"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "airflow_dags")}
    task = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=tmp_path)
    pid = wait_until(lambda: _number(tmp_path / "command"), 30, lambda: "the command did not start")
    task.send_signal(signal.SIGKILL)
    task.wait(30)
    wait_until(lambda: not group_members(pid), 30, lambda: "the command was left behind")


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def test_secrets_of_a_connection_are_in_a_file_of_the_owner(tmp_path: Path) -> None:
    extra = {"bootstrap.servers": "b:9092", "sasl.password": "geheim", "group.id": "g", "security.protocol": "SASL_SSL"}
    path = Path(client_properties(extra, str(tmp_path)))
    assert path.read_text() == "bootstrap.servers=b:9092\nsasl.password=geheim\nsecurity.protocol=SASL_SSL\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
