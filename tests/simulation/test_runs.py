"""Simulated runs of one broker: no seed violates an invariant, and each repeats itself exactly."""

from __future__ import annotations

import random

import pytest

from tests.simulation.faults import KINDS, draw_faults
from tests.simulation.run import run
from tests.simulation.traces import traces_under_hash_seeds


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
    [trace] = traces_under_hash_seeds("tests.simulation.run", "run(4, 8.0)")
    assert trace.startswith("None ")


def test_faults_of_every_kind_are_drawn() -> None:
    faults = [fault for seed in range(40) for fault in draw_faults(random.Random(seed), 30.0, list(KINDS))]
    assert {fault.kind for fault in faults} == set(KINDS)
