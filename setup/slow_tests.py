"""What `make check` leaves out: all examples of the properties, and the slow tests.

Three runs go on side by side, because much of their time is waiting. Each folder of Spark's tests is a run of its own:
one process has one JVM, and their sessions differ. The first run archives the classes that Spark loads: later JVMs map
them (`spark_classes.py`). What a run says is printed when it has ended; a failure does not hide another. Exit code 1
for any. Ctrl-C or SIGTERM interrupts the runs, which stop what they have started, and begins no further one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

#: Properties without HYPOTHESIS_FEW, by which `make check` tries few examples; the marker is Hypothesis' own.
PYTEST = [sys.executable, "-m", "pytest", "-m", "slow or hypothesis", "--durations=20"]
TESTS = Path("tests")
SIDE_BY_SIDE = 3
#: By the time that they take. They begin first: a long run that begins last would go on alone.
LONGEST = [
    "end_to_end",
    "spark/pipelines/sinks",
    "spark/pipelines",
    "conformance",
    "simulation",
    "interaction",
    "spark/loads",
]
#: Tests start Spark often and give it little to do. With the quick compiler alone a start and its first query take 17 s
#: of processor time, else 28, in which the JVM compiles what it hardly runs again. It reserves 48 MB for compiled code
#: then, which a session of many queries fills: the JVM would throw code away, and compile it again.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
#: spark-submit's first JVM only makes the command of the second: 0.2 s of processor time, else 0.3.
LAUNCHER_JVM = f"{QUICK_JVM} -XX:+UseSerialGC"
#: A start and its first queries take 12 s of processor time with an archive of classes, else 18. The JVM starts without
#: an archive that is missing, or made for another class path, which it would say on standard output.
SHARED_CLASSES = "-XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
ARCHIVE_CLASSES = [sys.executable, str(Path(__file__).with_name("spark_classes.py"))]


class Runs:
    """The runs. They hear of Ctrl-C from here alone, once: a second one would cut short what they stop.

    Args:
        place: The folder of their temporary files: processes that tests kill leave theirs behind.
    """

    def __init__(self, place: str) -> None:
        # A value of the user's own wins for Java; its temporary files do not follow TMPDIR.
        java = f"{QUICK_JVM} -Djava.io.tmpdir={place}"
        self._archive = str(Path(place, "spark.jsa"))
        self._to_archive = {"SPARK_SUBMIT_OPTS": java} | os.environ | {"TMPDIR": place}
        shared = f"{java} {SHARED_CLASSES.format(archive=self._archive)}"
        given = {"SPARK_SUBMIT_OPTS": shared, "SPARK_LAUNCHER_OPTS": LAUNCHER_JVM}
        self._environment = given | os.environ | {"TMPDIR": place}
        self._untold: set[subprocess.Popen[bytes]] = set()
        self._printing = threading.Lock()
        self._is_interrupted = False

    def archive_classes(self) -> int:
        """Archive the classes that Spark loads; the exit code."""
        return self._run([*ARCHIVE_CLASSES, self._archive], self._to_archive)

    def test(self, arguments: Sequence[str]) -> int:
        """One run of pytest; its exit code."""
        return self._run([*PYTEST, *arguments], self._environment)

    def _run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        if self._is_interrupted:
            return 1
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True, env=environment)
            self._untold.add(process)
            if self._is_interrupted:  # meanwhile
                self._tell()
            code = process.wait()
            self._untold.discard(process)
            said.seek(0)
            with self._printing:
                sys.stdout.buffer.write(said.read())
                sys.stdout.buffer.flush()
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
    with ThreadPoolExecutor(SIDE_BY_SIDE) as side_by_side:
        archived = side_by_side.submit(runs.archive_classes)
        codes = list(side_by_side.map(runs.test, groups()))
    if archived.result() or any(codes):
        print(f"temporary files of the tests are kept in {place}", file=sys.stderr)
        return 1
    shutil.rmtree(place, ignore_errors=True)
    return 0


def groups() -> list[list[str]]:
    """The arguments of each run, those that take longest first."""
    spark = {path.parent for path in (TESTS / "spark").rglob("test_*.py")}
    others = {TESTS / path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")} - {TESTS / "spark"}
    folders = [TESTS / name for name in LONGEST]
    folders += sorted((spark | others) - set(folders))
    return [[str(folder), *(f"--ignore={inner}" for inner in folders if folder in inner.parents)] for folder in folders]


if __name__ == "__main__":
    sys.exit(main())
