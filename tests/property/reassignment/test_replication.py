"""More replicas for any cluster: nothing that a partition has is taken away, and a second plan adds nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.cli.reassignment.replication import replication_plan
from headwater.cli.reassignment.snapshot import ClusterSnapshot, rack_spread
from tests.cluster_snapshots import carried_out
from tests.example_counts import examples
from tests.property.reassignment.test_plans import clusters


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


@given(clusters(), st.integers(2, 3))
@settings(max_examples=examples(100))
def test_other_topics_are_left_alone(before: ClusterSnapshot, replicas: int) -> None:
    plan = replication_plan(before, replicas, {"t"})
    assert {move.key.topic for move in plan.moves} | {each.key.topic for each in plan.blocked} <= {"t"}
