"""A pipeline that runs for ever: seen by its status, ended by `stop`, replayed by one command."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

START_S_MAX = 280


class Shop:
    """The pipeline that `init` writes, under a name of the test's own."""

    def __init__(self, headwater: Any, topics: Any, folder: Path) -> None:
        self.name = topics.prefix
        self.file = folder / "shop" / "pipeline.yaml"
        self.broker = ["-b", topics.servers]
        self.state = ["--state", str(folder / "state")]
        self.log = folder / "run.log"
        self._headwater = headwater
        self("pipeline", "init", str(self.file.parent), "--name", self.name)
        self("topic", "create", f"{self.name}_orders", "--partitions", "3", *self.broker)
        order = {"id": 1, "shop": "S1", "amount": 1.0, "at": "2026-01-01T00:00:00Z"}
        topics.produce(f"{self.name}_orders", [(b"k", json.dumps(order).encode())] * 9)

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = self._headwater(*arguments)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def status(self) -> dict[str, Any]:
        done = self("pipeline", "status", str(self.file), *self.broker, *self.state, "-o", "json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found | {"stages": {stage["stage"]: stage for stage in found["stages"]}}


@pytest.fixture
def shop(headwater: Any, topics: Any, tmp_path: Path) -> Shop:
    return Shop(headwater, topics, tmp_path)


@pytest.fixture
def running(shop: Shop, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The pipeline, running for ever."""
    command = [sys.executable, "-P", "-m", "headwater", "pipeline", "run", str(shop.file), *shop.broker, *shop.state]
    with shop.log.open("wb") as log:
        process = subprocess.Popen([*command, "--continuous"], cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_run_is_seen_by_its_status_and_ended_by_stop(shop: Shop, running: subprocess.Popen[bytes]) -> None:
    # A continuous run carries records through all stages.
    deadline = time.monotonic() + START_S_MAX
    while "sales: batch " not in shop.log.read_text():
        assert time.monotonic() < deadline, "no micro-batch is done"
        assert running.poll() is None
        time.sleep(0.2)
    found = shop.status()
    assert (found["alive"], found["process"]) == (True, running.pid)
    assert [found["stages"][stage]["batch"] is None for stage in ("clean", "sales")] == [False, False]
    replay = ["pipeline", "replay", str(shop.file), "--from", "earliest", "--yes", *shop.broker, *shop.state]
    busy = shop(*replay, code=1)
    assert f"still alive (process {running.pid})" in busy.stderr

    told = shop("pipeline", "stop", shop.name, *shop.state)
    assert told.stderr.splitlines()[-1] == f"{shop.name} has stopped"
    assert running.wait(30) == 0
    assert not shop.status()["alive"]
    again = shop("pipeline", "stop", str(shop.file), *shop.state)
    assert again.stderr == f"{shop.name} is not running\n"

    done = shop(*replay, "--run")
    assert "clean: 9 rows read, 9 written" in done.stderr
    assert shop.status()["stages"]["clean"]["epoch"] == 2
