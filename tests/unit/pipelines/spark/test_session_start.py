"""The start of a session, as far as it needs no JVM."""

import subprocess
import sys
from pathlib import Path

NUMPY_IS_WHOLE = """
import sys
from pyspark.sql import SparkSession
from headwater.pipelines.spark import session

def warm():
    numpy = sys.modules.get("numpy")
    print(numpy is not None and not numpy.__spec__._initializing)

def fail(builder):
    raise RuntimeError("no JVM")

session._warm_kernels = warm
SparkSession.Builder.getOrCreate = fail
try:
    session.open_session("test", sys.argv[1], {"spark.master": "local[1]"})
except session.SessionError as error:
    print(str(error).partition(":")[0])
"""


def test_numpy_is_whole_before_a_second_thread_imports_it(tmp_path: Path) -> None:
    """PySpark's thread has got `partially initialized module 'numpy'` while that of the kernels imported it."""
    command = [sys.executable, "-P", "-c", NUMPY_IS_WHOLE, str(tmp_path / "spark.log")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert set(ended.stdout.split("\n")) == {"True", "Spark did not start", ""}, ended
