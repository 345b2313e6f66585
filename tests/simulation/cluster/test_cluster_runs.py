"""Simulated runs of three brokers: no seed violates an invariant, and each repeats itself exactly."""

from __future__ import annotations

import random

import pytest

from tests.simulation.cluster.faults import CLUSTER_KINDS
from tests.simulation.cluster.run import run_cluster
from tests.simulation.faults import draw_faults
from tests.simulation.traces import traces_under_hash_seeds


@pytest.mark.parametrize("seed", [3, 9])
def test_a_cluster_rides_out_faults(seed: int) -> None:
    outcome = run_cluster(seed, 6.0)
    assert outcome.violation is None
    assert outcome.counts["produce"] > 20, "the clients came to nothing"
    assert outcome.counts["fetch"] > 20
    assert outcome.counts["committed"] > 5
    assert outcome.counts["assigned"] > 1
    assert outcome.counts["reread"] > 0, "no topic was made anew"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2_000, 2_045))
def test_a_cluster_rides_out_many_faults(seed: int) -> None:
    assert run_cluster(seed, 15.0).violation is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3_000, 3_005))
def test_five_brokers_ride_out_many_faults(seed: int) -> None:
    assert run_cluster(seed, 15.0, brokers=5).violation is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4_000, 4_010))
def test_beyond_what_replication_survives_logs_still_agree(seed: int) -> None:
    assert run_cluster(seed, 15.0, beyond=True).violation is None


def test_a_seed_of_a_cluster_has_one_trace_whatever_the_hashes_of_strings() -> None:
    [trace] = traces_under_hash_seeds("tests.simulation.cluster.run", "run_cluster(5, 3.0)")
    assert trace.startswith("None ")


def test_faults_of_every_kind_are_drawn_for_a_cluster() -> None:
    faults = [fault for seed in range(60) for fault in draw_faults(random.Random(seed), 30.0, list(CLUSTER_KINDS))]
    assert {fault.kind for fault in faults} == set(CLUSTER_KINDS)
