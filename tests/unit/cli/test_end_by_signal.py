"""`headwater up`, a running pipeline, and signals: a handler may come at any moment of the wait that it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRIES = 300

#: The wait looks for signals all the time, so that a handler often comes in the middle of that.
NODE = f"""
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

#: A runner's main thread waits by the event that `stop` sets, as supervision does.
PIPELINE = f"""
import signal, threading
from headwater.cli.pipeline.stopping import run_until_signal

class Runner:
    def __init__(self):
        self.stopping = threading.Event()

    def stop(self):
        self.stopping.set()

    def run(self, on_session):
        # Another thread's os.kill would find the main thread at one place of its wait alone.
        signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while not self.stopping.wait(0.000001):
            pass

for _ in range({TRIES}):
    run_until_signal(Runner())
print("ended")
"""

#: A broker that waits for its cluster without end.
START = """
import asyncio, os, signal, sys
from headwater.cli.main import main
from headwater.cli.verbs import broker
from headwater.logtier.broker import Broker

async def wait(self):
    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
    try:
        await asyncio.Event().wait()
    finally:
        print("closed")

Broker.start = wait
broker.START_GRACE_S = 0.1
code = main(["broker", "--data", sys.argv[1], "--kafka-port", "0"])
print("ended")
sys.exit(code)
"""


def test_a_signal_ends_a_start_that_waits(tmp_path: object) -> None:
    command = [sys.executable, "-c", START, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "closed\nended\n"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("program", [NODE, PIPELINE], ids=["node", "pipeline"])
def test_a_signal_ends_the_wait_whenever_it_comes(tmp_path: object, program: str) -> None:
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ended\n"
    assert "Traceback" not in done.stderr
