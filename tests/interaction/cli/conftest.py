"""The command line as a process of its own, as users and scripts run it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

TIMEOUT_S = 60


class CommandLine:
    """Runs `headwater` with a clean environment in a folder of its own."""

    def __init__(self, folder: Path, bootstrap_servers: str | None = None) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
        self.environment |= {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "default"}
        if bootstrap_servers is not None:
            self.environment["HEADWATER_BOOTSTRAP_SERVERS"] = bootstrap_servers

    def start(self, *arguments: str | bytes) -> subprocess.Popen[bytes]:
        """Starts a command with all three streams piped."""
        process = subprocess.Popen(
            [sys.executable, "-m", "headwater", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=self.environment,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """Ends what a test that failed has left: its pipes would disturb another one."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def shell(self, command: str, exit_code: int) -> tuple[bytes, str]:
        """Runs a line of shell, in which $H is the command; returns stdout and stderr."""
        environment = self.environment | {"H": f"{sys.executable} -m headwater"}
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.folder, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == exit_code, (done.returncode, done.stderr)
        assert b"Traceback" not in done.stderr
        assert b"unexpected" not in done.stderr
        return done.stdout, done.stderr.decode()

    def run(self, *arguments: str | bytes, stdin: bytes = b"", exit_code: int = 0) -> tuple[str, str]:
        """Runs a command to its end and returns stdout and stderr, after a look at the exit code."""
        process = self.start(*arguments)
        out, err = process.communicate(stdin, timeout=TIMEOUT_S)
        assert process.returncode == exit_code, f"exit code {process.returncode}: {err.decode()}"
        assert b"Traceback" not in err
        return out.decode(), err.decode()

    def fails(self, *arguments: str, exit_code: int, stdin: bytes = b"") -> str:
        """Runs a command that must say one line on stderr and nothing on stdout; returns the line."""
        out, err = self.run(*arguments, stdin=stdin, exit_code=exit_code)
        assert out == ""
        (line,) = err.splitlines()
        assert line.startswith("headwater: ")
        return line


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[CommandLine]:
    """The command line without a broker."""
    command_line = CommandLine(tmp_path)
    yield command_line
    command_line.close()


@pytest.fixture
def headwater(tmp_path: Path, bootstrap_servers: str) -> Iterator[CommandLine]:
    """The command line with the broker under test."""
    command_line = CommandLine(tmp_path, bootstrap_servers)
    yield command_line
    command_line.close()


@pytest.fixture
def topic(headwater: CommandLine) -> Iterator[str]:
    """A topic of three partitions for one test."""
    name = f"cli.{uuid.uuid4().hex[:12]}"
    headwater.run("topic", "create", name, "-p", "3")
    yield name
    headwater.run("topic", "delete", name, "--yes")
