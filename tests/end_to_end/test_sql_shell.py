"""The shell as its user has it: a process on a terminal, with history, several lines, and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

WAIT_S = 240
ENTER, CTRL_C, CTRL_D, UP = "\r", "\x03", "\x04", "\x1b[A"
PROMPT = "headwater>"
PROMPT_ENDS = "\x1b[?2004l"  # the prompt gives the terminal back
RUNS = "<runs>"
DONE = " s\r\n"  # the end of the line with a statement's time
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>]|\][^\x07]*\x07)")
ENDLESS = "SELECT count(*) FROM (SELECT explode(sequence(1, 100000)) FROM range(1000000000)) WHERE rand() < 2;"


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            arguments, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environment, start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - no other thread of this process runs yet
        )  # fmt: skip
        os.close(slave)
        self._raw = self._shown = ""
        self._seen = 0

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def read_until(self, text: str) -> str:
        """Read on until a text; returns what was shown before it, since the last call."""
        end = time.monotonic() + WAIT_S
        while (at := self._shown.find(text, self._seen)) < 0:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} does not come after {self._shown[self._seen :]!r}"
            if not select.select([self._master], [], [], left)[0]:
                continue
            try:
                data = os.read(self._master, 65_536)
            except OSError:
                data = b""
            assert data, f"the shell has ended: {self._shown[self._seen :]!r}"
            self._raw += data.decode(errors="replace")
            # What has come of a sequence that is not whole yet is looked at with its rest.
            whole = re.sub(r"\x1b[^A-Za-z]*$", "", self._raw)
            self._shown = ESCAPES.sub("", whole.replace(PROMPT_ENDS, RUNS))
        before = self._shown[self._seen : at]
        self._seen = at + len(text)
        return before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def _take_terminal() -> None:
    """Make standard input the terminal of the new session, so that Ctrl-C becomes a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    folder = tmp_path / "folder"
    folder.mkdir()
    environment = os.environ | {
        "PYTHONSAFEPATH": "1", "XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1",
        "HEADWATER_SPARK_MASTER": "local[2]", "PAGER": "cat", "COLUMNS": "120", "LINES": "40",
    }  # fmt: skip
    with contextlib.ExitStack() as stack:

        def run(*options: str) -> Terminal:
            found = Terminal([sys.executable, "-m", "headwater", "sql", *options], folder, environment)
            stack.callback(found.close)
            return found

        yield run
    # kio registers strategies where Hypothesis is installed, which then makes a folder; users do not have it.
    left = [path for path in folder.iterdir() if path.name != ".hypothesis"]
    assert left == [], "the shell leaves something behind"


def test_a_shell_on_a_terminal(start: Any, topics: Any, tmp_path: Path) -> None:
    orders = f"{topics.prefix}.orders"
    topics.produce(orders, [(b"k", b"v")] * 3)
    shell = start("-b", topics.servers)
    shell.read_until(PROMPT)

    def run(keys: str, until: str = DONE) -> str:
        shell.type(keys)
        shell.read_until(RUNS)
        return str(shell.read_until(until))

    # Several lines; the continuation has a prompt of its own.
    told = run(f"SELECT count(*) AS n{ENTER}FROM log.`{orders}`;{ENTER}")
    assert "3" in told
    assert "1 row in " in told
    # Ctrl-C ends the statement, and the next one runs in the same session.
    shell.read_until(PROMPT)
    run(f"CREATE TEMP VIEW kept AS SELECT 41 + 1 AS answer;{ENTER}")
    shell.read_until(PROMPT)
    shell.type(f"{ENDLESS}{ENTER}")
    shell.read_until(RUNS)
    time.sleep(2)
    shell.type(CTRL_C)
    shell.read_until("the statement is cancelled")
    shell.read_until(PROMPT)
    assert "42" in run(f"SELECT * FROM kept;{ENTER}")
    # A mistake, then the history.
    shell.read_until(PROMPT)
    run(f"SELECT answr FROM kept;{ENTER}", "line 1, column 8: there is no column 'answr'; did you mean 'answer'?")
    shell.read_until(PROMPT)
    assert "42" in run(f"{UP}{UP}{ENTER}")
    shell.read_until(PROMPT)
    shell.type(CTRL_D)
    assert shell.process.wait(WAIT_S) == 0
    history = (tmp_path / "state" / "headwater" / "sql_history").read_text()
    assert "+SELECT count(*) AS n\n+FROM" in history


def test_ctrl_c_ends_a_script_with_its_exit_code(start: Any, topics: Any) -> None:
    orders = f"{topics.prefix}.orders"
    topics.produce(orders, [(b"k", b"v")] * 3 + [(None, b"v")])
    query = f"SELECT count(key) AS keys FROM `{orders}`;"
    script = start("-b", topics.servers, "-o", "csv", "-e", f"{query}\n{ENDLESS}")
    script.read_until("keys\r\n3\r\n")
    time.sleep(2)
    script.process.send_signal(signal.SIGINT)
    assert script.process.wait(WAIT_S) == 130
