"""Stopping a process for a while, so that what it is given stays with it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

PATIENCE_S = 120


def stop(process_id: int) -> None:
    """Stop a process, and wait until none of its threads runs: the signal takes effect some time after it is sent."""
    os.kill(process_id, signal.SIGSTOP)
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_stopped(process_id):
        assert time.monotonic() < deadline_s, f"process {process_id} does not stop"
        time.sleep(0.001)


def is_stopped(process_id: int) -> bool:
    """Whether all threads of a process are stopped."""
    try:
        # What comes before is the program's name, in parentheses.
        return all(
            (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
            for task in Path(f"/proc/{process_id}/task").iterdir()
        )
    except (FileNotFoundError, ProcessLookupError):  # a thread ended meanwhile
        return False
