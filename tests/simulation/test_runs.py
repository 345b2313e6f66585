"""Simulated runs of one broker: no seed violates an invariant, and each repeats itself exactly."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.faults import KINDS, draw_faults
from tests.simulation.run import run

ROOT = Path(__file__).resolve().parents[2]
SHOW_TRACE = "from tests.simulation.run import run; o = run(4, 8.0); print(o.violation, o.steps, o.trace)"


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_broker_rides_out_faults(seed: int) -> None:
    outcome = run(seed, 8.0)
    assert outcome.violation is None
    assert outcome.counts["produce"] > 20, "the clients came to nothing"
    assert outcome.counts["fetch"] > 20
    assert outcome.counts["committed"] > 5
    assert outcome.counts["assigned"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_040))
def test_a_broker_rides_out_many_faults(seed: int) -> None:
    assert run(seed, 30.0).violation is None


def test_a_seed_has_one_trace_whatever_the_hashes_of_strings() -> None:
    traces = set()
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-P", "-c", SHOW_TRACE]
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        traces.add(done.stdout)
    assert len(traces) == 1
    assert traces.pop().startswith("None ")


def test_faults_of_every_kind_are_drawn() -> None:
    faults = [fault for seed in range(40) for fault in draw_faults(random.Random(seed), 30.0, list(KINDS))]
    assert {fault.kind for fault in faults} == set(KINDS)
