"""A registry as users run it, for clients made for Confluent's."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def registry_url(bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a registry on a topic of its own."""
    topic = f"_schemas-{uuid.uuid4().hex[:12]}"
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", "api", "-b", bootstrap_servers, "--http-port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONSAFEPATH": "1", "HEADWATER_REGISTRY_TOPIC": topic},
        cwd=tmp_path_factory.mktemp("api"),
    )
    assert process.stdout is not None
    yield process.stdout.readline().decode().split()[-1]
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0
