"""The start of a session, as far as it needs no JVM."""

import subprocess
import sys
from pathlib import Path

import pytest

SHARED = ("numpy", "pandas", "pyarrow", "pyspark.sql", "pyspark.testing.utils")

#: What both scripts have; their arguments are the log of Spark and the names of SHARED.
STARTED = """
import sys
from headwater.pipelines.spark import session

def tell_what_is_whole():
    lines = []
    for name in sys.argv[2:]:
        module = sys.modules.get(name)
        lines.append(f"{name} {module is not None and not module.__spec__._initializing}\\n")
    sys.stdout.write("".join(lines))

def fail(builder):
    raise RuntimeError("no JVM")

def open_session():
    from pyspark.sql import SparkSession
    SparkSession.Builder.getOrCreate = fail
    try:
        session.open_session("test", sys.argv[1], {"spark.master": "local[1]"})
    except session.SessionError as error:
        sys.stdout.write(str(error).partition(":")[0] + "\\n")
"""

SESSION = (
    STARTED
    + """
session._warm_kernels = tell_what_is_whole
open_session()
"""
)

LOADS = (
    STARTED
    + """
from headwater.pipelines.loads.running import LoadRun

class Told(LoadRun):
    def _feed(self, *_):
        tell_what_is_whole()

Told((), None, "", None).run(open_session)
"""
)


@pytest.mark.parametrize("script", [SESSION, LOADS], ids=["session", "loads"])
def test_what_threads_share_is_whole_before_the_second_one_starts(script: str, tmp_path: Path) -> None:
    """A call through py4j has failed with `partially initialized module 'numpy'`, which another thread imported."""
    command = [sys.executable, "-P", "-c", script, str(tmp_path / "spark.log"), *SHARED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert {*ended.stdout.splitlines()} == {*(f"{name} True" for name in SHARED), "Spark did not start"}, ended
