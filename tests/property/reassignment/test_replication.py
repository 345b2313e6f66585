"""More replicas for any cluster: nothing that a partition has is taken away, and a second plan adds nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.cli.reassignment.reading import read_cluster
from headwater.cli.reassignment.replication import replication_plan
from headwater.cli.reassignment.runner import PlanRunner
from headwater.cli.reassignment.snapshot import ClusterSnapshot, rack_spread
from tests.cluster_snapshots import carried_out
from tests.example_counts import examples
from tests.property.reassignment.clusters import clusters
from tests.reassigning_cluster import ReassigningCluster

RUNS_MAX = 20


@given(clusters(), st.integers(1, 4))
@settings(max_examples=examples(400))
def test_every_partition_has_its_replicas_or_a_reason(before: ClusterSnapshot, replicas: int) -> None:
    plan = replication_plan(before, replicas)
    after = carried_out(before, plan)
    blocked = {each.key for each in plan.blocked}
    racks = before.racks
    for key, part in before.partitions.items():
        new = after.partitions[key].replicas
        assert new[: len(part.replicas)] == part.replicas
        assert len(set(new)) == len(new)
        assert len(new) >= replicas or key in blocked
        assert len(new) <= max(replicas, len(part.replicas))
        assert rack_spread(new, racks) >= rack_spread(part.replicas, racks)
        assert new == part.replicas or part.leader is not None
    for move in plan.moves:
        assert move.added and not move.removed
        assert all(before.brokers[each].log_dirs for each in move.added)
    assert all(each.reason for each in plan.blocked)
    assert replication_plan(after, replicas).moves == ()


@given(clusters(), st.integers(2, 3), st.lists(st.integers(1, 6), max_size=3))
@settings(max_examples=examples(100), deadline=None)
def test_a_killed_run_continues(before: ClusterSnapshot, replicas: int, kills: list[int]) -> None:
    cluster = ReassigningCluster(before, rate=40)
    for polls in [*kills, *[None] * RUNS_MAX]:
        snapshot, running = read_cluster(cluster)
        plan = replication_plan(snapshot, replicas)
        if plan.is_empty and not running:
            break
        cluster.interrupt_at_s = None if polls is None else cluster.now_s + polls * 0.5
        runner = PlanRunner(cluster, cluster, lambda _: None, cluster.uninterrupted)
        try:
            result = runner.run(plan, snapshot, running, concurrent_moves=2, throttle_bytes=None)
        except KeyboardInterrupt:
            continue
        assert result.foreign == ()
        if result.failures:
            break
    else:
        raise AssertionError("the runs do not end")
    blocked = {each.key for each in plan.blocked} | {each.key for each in plan.moves}
    for key, part in before.partitions.items():
        assert set(part.replicas) <= set(cluster.replicas[key])
        assert len(cluster.replicas[key]) >= replicas or key in blocked


@given(clusters(), st.integers(2, 3))
@settings(max_examples=examples(100))
def test_other_topics_are_left_alone(before: ClusterSnapshot, replicas: int) -> None:
    plan = replication_plan(before, replicas, {"t"})
    assert {move.key.topic for move in plan.moves} | {each.key.topic for each in plan.blocked} <= {"t"}
