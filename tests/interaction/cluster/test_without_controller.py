"""`headwater cluster` beside a cluster without a controller: a damaged node keeps others from succeeding it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.logtier.cluster import controlled_shutdown
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.store import SetData
from tests.interaction.cluster.test_members import PATIENCE_S, Cluster, run

pytestmark = pytest.mark.slow


def headwater(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "headwater", *arguments]
    environment = os.environ | {"HEADWATER_REQUEST_TIMEOUT_MS": "5000"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_commands_say_that_the_controller_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controlled_shutdown, "TIMEOUT_MS", 0)  # there is nobody to ask

    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.settled()
        cluster.model.write([SetData(paths.CONTROLLER_EPOCH, b"many")], 0)
        await cluster.stop(controller)
        address = next(iter(cluster.brokers.values())).bootstrap_address
        for verb in ("status", "health"):
            done = await asyncio.to_thread(headwater, "cluster", verb, "-b", address)
            assert (done.returncode, done.stdout) == (1, "")
            (line,) = done.stderr.splitlines()
            assert line.startswith(f"headwater: cluster: a broker answers at {address}, and the controller does not")

    run(tmp_path, scenario)
