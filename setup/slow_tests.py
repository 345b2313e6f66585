"""What `make check` leaves out: all examples of the properties, and the slow tests.

Spark's tests run beside all others, because much of their time is waiting.

Each folder of Spark's tests is a run of its own: one process has one JVM, and their sessions differ. What they say is
printed when the others have ended; a failure does not hide another. Exit code 1 for any. Ctrl-C or SIGTERM interrupts
the runs, which stop what they have started, and begins no further one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import IO

PYTEST = [sys.executable, "-m", "pytest", "-m", "slow", "--durations=20"]
SPARK = Path("tests", "spark")
#: Tests start Spark often and give it little to do. With the quick compiler alone a start and its first query take 17 s
#: of processor time, else 28, in which the JVM compiles what it hardly runs again.
QUICK_JVM = "-XX:TieredStopAtLevel=1"
#: Without HYPOTHESIS_FEW, by which `make check` tries few examples; the marker is Hypothesis' own. The last -m counts.
PROPERTIES = ["-m", "hypothesis and not slow", "tests"]


class Runs:
    """Runs of pytest. They hear of Ctrl-C from here alone, once: a second one would cut short what they stop.

    Args:
        place: The folder of their temporary files: processes that tests kill leave theirs behind.
    """

    def __init__(self, place: str) -> None:
        # A value of the user's own wins for Java; its temporary files do not follow TMPDIR.
        java = {"SPARK_SUBMIT_OPTS": f"{QUICK_JVM} -Djava.io.tmpdir={place}"}
        self._environment = java | os.environ | {"TMPDIR": place}
        self._untold: set[subprocess.Popen[bytes]] = set()
        self._is_interrupted = False

    def run(self, arguments: Sequence[str], said: IO[bytes] | None = None) -> int:
        """One run; its exit code."""
        if self._is_interrupted:
            return 1
        process = subprocess.Popen(
            [*PYTEST, *arguments], stdout=said, stderr=said, start_new_session=True, env=self._environment
        )
        self._untold.add(process)
        if self._is_interrupted:  # meanwhile
            self._tell()
        code = process.wait()
        self._untold.discard(process)
        return code

    def interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        """End what runs; begin nothing."""
        self._is_interrupted = True
        self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(KeyError):  # all are told
            while True:
                self._untold.pop().send_signal(signal.SIGINT)


def main() -> int:
    """Run them; the exit code."""
    # Short, because some of it becomes paths of sockets.
    place = tempfile.mkdtemp(prefix="hw-")
    runs = Runs(place)
    signal.signal(signal.SIGINT, runs.interrupt)
    signal.signal(signal.SIGTERM, runs.interrupt)
    with tempfile.TemporaryFile() as said, ThreadPoolExecutor(1) as beside:
        of_spark = beside.submit(lambda: [runs.run(group, said) for group in spark_groups()])
        codes = [runs.run(PROPERTIES), runs.run([f"--ignore={SPARK}"]), *of_spark.result()]
        said.seek(0)
        sys.stdout.buffer.write(said.read())
    if any(codes):
        print(f"temporary files of the tests are kept in {place}", file=sys.stderr)
        return 1
    shutil.rmtree(place, ignore_errors=True)
    return 0


def spark_groups() -> list[list[str]]:
    """The arguments of one run each: a folder, and at last the files beside the folders."""
    folders = sorted({str(path.parent) for path in SPARK.glob("*/test_*.py")})
    return [*([folder] for folder in folders), [str(SPARK), *(f"--ignore={folder}" for folder in folders)]]


if __name__ == "__main__":
    sys.exit(main())
