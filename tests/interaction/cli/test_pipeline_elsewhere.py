"""`status` and `stop` of a pipeline whose checkpoints other machines share: the status topic says where it runs."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.cli.main import main
from headwater.pipelines.datasource.options import WriteOptions
from headwater.pipelines.monitoring.stage_state import State
from headwater.pipelines.monitoring.status_topic import StatusTopic
from headwater.pipelines.monitoring.watching import RunWatch

pytestmark = pytest.mark.slow


@pytest.fixture
def name() -> str:
    return f"far_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def watch(name: str, bootstrap_servers: str) -> Iterator[RunWatch]:
    """A run on "another machine": it has the state folder of its own, and publishes its status."""
    made = RunWatch(name, [StatusTopic(WriteOptions.parse({"kafka.bootstrap.servers": bootstrap_servers}).client)])
    info: Any = SimpleNamespace(stages=("clean",), continuous=True, started_ms=1, versions={})
    made.begin(info)
    made.set_state("clean", State.RUNNING)
    yield made
    made.end()


def test_the_machine_of_a_run_is_named_until_it_ends(
    name: str, watch: RunWatch, bootstrap_servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ["--state", str(tmp_path / "here"), "--checkpoints", str(tmp_path / "shared"), "-b", bootstrap_servers]
    (tmp_path / "shared" / name / "clean" / "checkpoint").mkdir(parents=True)

    def status() -> dict[str, Any]:
        assert main(["pipeline", "status", name, *shared, "-o", "json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    found = status()
    while not found["alive"]:  # its first record is on its way
        found = status()
    assert (found["host"], found["process"]) == (socket.gethostname(), os.getpid())
    assert main(["pipeline", "status", name, *shared]) == 0
    assert f"{name} is running on {socket.gethostname()} (process {os.getpid()})" in capsys.readouterr().out
    assert main(["pipeline", "stop", name, *shared]) == 1
    assert f"{name} runs on {socket.gethostname()} (process {os.getpid()}); stop it there" in capsys.readouterr().err

    watch.end()
    assert not status()["alive"]
    assert main(["pipeline", "stop", name, *shared]) == 0
    assert f"{name} is not running" in capsys.readouterr().err


def test_checkpoints_that_cannot_be_reached_are_one_line(
    bootstrap_servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--state", str(tmp_path), "-b", bootstrap_servers]
    assert main(["pipeline", "status", "p", "--checkpoints", "gopher://x/y", *where]) == 1
    said = capsys.readouterr().err
    assert "the scheme 'gopher' is not supported" in said
    assert "Traceback" not in said
    assert main(["pipeline", "stop", "p", "--checkpoints", "hdfs:///x", *where]) == 1
    assert "hdfs:///x names no NameNode" in capsys.readouterr().err
