"""`headwater api` processes in front of the broker under test, each with a registry on a topic."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

StartApi = Callable[..., str]


@pytest.fixture
def start_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartApi]:
    """A factory: brokers and the registry's topic in, URL out. The processes end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(bootstrap_servers: str, topic: str, **settings: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "headwater", "api", "-b", bootstrap_servers, "--http-port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONSAFEPATH": "1", "HEADWATER_REGISTRY_TOPIC": topic} | settings,
            cwd=tmp_path_factory.mktemp("api"),
        )
        started.append(process)
        assert process.stdout is not None
        return process.stdout.readline().decode().split()[-1]

    yield start
    for process in started:
        process.terminate()
    for process in started:
        process.communicate(timeout=30)
        assert process.returncode == 0
