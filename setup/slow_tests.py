"""The slow tests: Spark's beside all others, because much of their time is waiting.

What Spark's tests say is printed when the others have ended; a failure does not hide another. Exit code 1 for any.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from types import FrameType

PYTEST = [sys.executable, "-m", "pytest", "-m", "slow"]


def main() -> int:
    """Run them; the exit code."""
    with tempfile.TemporaryFile() as said:
        spark = subprocess.Popen([*PYTEST, "tests/spark"], stdout=said, stderr=subprocess.STDOUT)
        others = subprocess.Popen([*PYTEST, "--ignore=tests/spark"])

        def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
            for one in (spark, others):
                one.send_signal(signal.SIGINT)  # they end their brokers, then

        signal.signal(signal.SIGTERM, end)
        codes = [ended(others), ended(spark)]
        said.seek(0)
        sys.stdout.buffer.write(said.read())
    return int(any(codes))


def ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. Ctrl-C reaches the tests, too: they are given the time to stop what they started."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            return process.wait()


if __name__ == "__main__":
    sys.exit(main())
