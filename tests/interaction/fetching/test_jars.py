"""Jars from Maven Central, fetched into an empty cache by several processes at once, as `make test` does."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FETCH = """
import sys
from tests.jars import fetched
print(fetched(sys.argv[1], [("org.apache.kafka", "kafka-clients", "4.1.1")]))
"""
JARS = {"kafka-clients-4.1.1.jar", "lz4-java-1.8.0.jar", "slf4j-api-1.7.36.jar", "snappy-java-1.1.10.7.jar"}


def test_processes_that_fetch_the_same_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}

    def fetch(name: str) -> Path:
        command = [sys.executable, "-c", FETCH, name]
        done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, timeout=240, check=True)
        return Path(done.stdout.strip())

    # Two for one folder, one for another with the same jars.
    names = ["one", "one", "other"]
    with ThreadPoolExecutor(len(names)) as threads:
        folders = list(threads.map(fetch, names))
    assert folders == [tmp_path / "headwater" / name for name in names]
    for folder in folders:
        assert {path.name for path in folder.iterdir()} > JARS
    assert {path.name for path in (tmp_path / "headwater").iterdir()} == {"one", "other", "ivy", "ivy.lock"}
