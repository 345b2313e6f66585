"""The slow tests: Spark's beside all others, because much of their time is waiting.

Each folder of Spark's tests is a run of its own: one process has one JVM, and their sessions differ. What they say is
printed when the others have ended; a failure does not hide another. Exit code 1 for any.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

PYTEST = [sys.executable, "-m", "pytest", "-m", "slow"]
SPARK = Path("tests", "spark")


def main(arguments: list[str]) -> int:
    """Run them; the exit code. With `spark`, those of Spark alone."""
    if arguments == ["spark"]:
        of_groups = [ended(subprocess.Popen([*PYTEST, *group])) for group in spark_groups()]
        return int(any(of_groups))
    with tempfile.TemporaryFile() as said:
        spark = subprocess.Popen([sys.executable, __file__, "spark"], stdout=said, stderr=subprocess.STDOUT)
        others = subprocess.Popen([*PYTEST, f"--ignore={SPARK}"])

        def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
            for one in (spark, others):
                one.send_signal(signal.SIGINT)  # they end their brokers, then

        signal.signal(signal.SIGTERM, end)
        codes = [ended(others), ended(spark)]
        said.seek(0)
        sys.stdout.buffer.write(said.read())
    return int(any(codes))


def spark_groups() -> list[list[str]]:
    """The arguments of one run each: a folder, and at last the files beside the folders."""
    folders = sorted({str(path.parent) for path in SPARK.glob("*/test_*.py")})
    return [*([folder] for folder in folders), [str(SPARK), *(f"--ignore={folder}" for folder in folders)]]


def ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. Ctrl-C reaches the tests, too: they are given the time to stop what they started."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
