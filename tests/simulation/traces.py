"""The trace of a run in another interpreter: the same for each hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def traces_under_hash_seeds(module: str, call: str) -> set[str]:
    """Return what a call of a module's function, which returns an outcome, comes to under two hash seeds."""
    program = f"import {module} as runs; o = runs.{call}; print(o.violation, o.steps, o.trace)"
    path = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
    traces = set()
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        command = [sys.executable, "-P", "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        traces.add(done.stdout)
    return traces
