"""`headwater up` and signals: a handler may come at any moment of the wait that it ends."""

from __future__ import annotations

import subprocess
import sys

TRIES = 300

#: The wait looks for signals all the time, so that a handler often comes in the middle of that.
PROGRAM = f"""
import signal, sys
from headwater import services
services.SIGNAL_CHECK_S = 0.000001
for _ in range({TRIES}):
    node = services.LocalProcesses(sys.argv[1], None, None)
    signal.signal(signal.SIGALRM, lambda number, frame: node.end_wait())
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    assert node.wait()
print("ended")
"""


def test_a_signal_ends_the_wait_whenever_it_comes(tmp_path: object) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("ended\n", "")
