"""Runs that are killed at any time and begun again end where one run ends."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.cli.reassignment.balance import balance_plan
from headwater.cli.reassignment.band import BalanceBand
from headwater.cli.reassignment.drain import drain_plan
from headwater.cli.reassignment.plan import ReassignmentPlan
from headwater.cli.reassignment.reading import read_cluster
from headwater.cli.reassignment.runner import PlanRunner
from headwater.cli.reassignment.snapshot import ClusterSnapshot
from tests.example_counts import examples
from tests.property.reassignment.clusters import clusters
from tests.reassigning_cluster import ReassigningCluster

BAND = BalanceBand(10, 3)
RUNS_MAX = 20


def run_until_done(cluster: ReassigningCluster, drained: list[int], kills: list[int], limit: int) -> ReassignmentPlan:
    """Drain brokers, or balance if none, with kills after some polls each; return the last plan."""
    for polls in [*kills, *[None] * RUNS_MAX]:
        snapshot, running = read_cluster(cluster)
        plan = drain_plan(snapshot, drained) if drained else balance_plan(snapshot, BAND)
        if plan.is_empty and not running:
            return plan
        cluster.interrupt_at_s = None if polls is None else cluster.now_s + polls * 0.5
        runner = PlanRunner(cluster, cluster, list[str]().append, cluster.uninterrupted)
        try:
            result = runner.run(plan, snapshot, running, concurrent_moves=limit, throttle_bytes=1_000)
        except KeyboardInterrupt:
            assert cluster.configs_set == {}, "throttles are removed"
            continue
        assert result.foreign == ()
        assert set(result.failures.values()) <= {reason for reason in result.failures.values() if "no room" in reason}
        if result.failures:
            return plan
    raise AssertionError("the runs do not end")


def check_factors(before: ClusterSnapshot, cluster: ReassigningCluster) -> None:
    for key, part in before.partitions.items():
        assert len(set(cluster.replicas[key])) == len(part.replicas)


@given(clusters(), st.lists(st.integers(1, 6), max_size=3), st.integers(1, 3), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_killed_drain_continues(before: ClusterSnapshot, kills: list[int], limit: int, data: st.DataObject) -> None:
    cluster = ReassigningCluster(before, rate=40)
    drained = data.draw(st.sampled_from(sorted({*before.brokers, *before.absent})))
    last = run_until_done(cluster, [drained], kills, limit)
    check_factors(before, cluster)
    assert cluster.busiest <= limit
    stays = {key for key, replicas in cluster.replicas.items() if drained in replicas}
    assert stays <= {each.key for each in last.blocked} | {each.key for each in last.moves}
    if not last.moves:
        assert stays == {each.key for each in last.blocked}


@given(clusters(), st.lists(st.integers(1, 6), max_size=3), st.integers(1, 3))
@settings(max_examples=examples(200), deadline=None)
def test_a_killed_balance_continues_and_ends(before: ClusterSnapshot, kills: list[int], limit: int) -> None:
    cluster = ReassigningCluster(before, rate=40)
    run_until_done(cluster, [], kills, limit)
    check_factors(before, cluster)
    assert cluster.busiest <= limit
