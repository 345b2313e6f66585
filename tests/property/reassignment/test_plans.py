"""Plans for any cluster: nothing is lost, racks stay, and plans end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.cli.reassignment.balance import balance_plan
from headwater.cli.reassignment.band import BalanceBand
from headwater.cli.reassignment.drain import drain_plan
from headwater.cli.reassignment.plan import BrokerLoad, ReassignmentPlan
from headwater.cli.reassignment.snapshot import (
    ClusterSnapshot,
    rack_spread,
)
from tests.cluster_snapshots import carried_out
from tests.example_counts import examples
from tests.property.reassignment.clusters import clusters

BAND = BalanceBand(10, 3)


def check_plan(before: ClusterSnapshot, plan: ReassignmentPlan) -> ClusterSnapshot:
    """What holds of every plan; return the cluster after it."""
    after = carried_out(before, plan)
    assert len({each.key for each in plan.moves}) == len(plan.moves)
    racks = before.racks
    for key, part in before.partitions.items():
        new = after.partitions[key].replicas
        assert len(new) == len(part.replicas), "the factor is kept"
        assert len(set(new)) == len(new), "no two replicas on a broker"
        assert rack_spread(new, racks) >= rack_spread(part.replicas, racks)
    for move in plan.moves:
        assert move.before == before.partitions[move.key].replicas != move.after
        assert all(before.brokers[each].log_dirs for each in move.added)
        assert not move.added or before.partitions[move.key].leader is not None
    for broker in after.brokers.values():
        gained = any(broker.broker_id in move.added for move in plan.moves)
        for folder in broker.log_dirs:
            old = next(each for each in before.brokers[broker.broker_id].log_dirs if each.path == folder.path)
            if gained and folder.usable_bytes is not None and old.usable_bytes is not None:
                assert folder.usable_bytes >= min(old.usable_bytes, 0)
    return after


def loads(snapshot: ClusterSnapshot) -> list[int]:
    return [
        sum(part.size_bytes for part in snapshot.partitions.values() if broker.broker_id in part.replicas)
        for broker in snapshot.brokers.values()
        if broker.log_dirs
    ]


def spread(values: list[int]) -> int:
    return max(values, default=0) - min(values, default=0)


def missing_racks(snapshot: ClusterSnapshot) -> int:
    racks = snapshot.racks
    number = len({racks[each] for each in snapshot.brokers})
    return sum(
        max(min(len(part.replicas), number) - rack_spread(part.replicas, racks), 0)
        for part in snapshot.partitions.values()
    )


def leader_unevenness(some: tuple[BrokerLoad, ...], snapshot: ClusterSnapshot) -> int:
    return sum(each.leaders**2 for each in some if each.broker_id in snapshot.brokers)


@given(clusters())
@settings(max_examples=examples(400))
def test_a_balance_loses_nothing_raises_no_spread_and_ends(before: ClusterSnapshot) -> None:
    plan = balance_plan(before, BAND)
    after = check_plan(before, plan)
    assert missing_racks(after) <= missing_racks(before)
    if missing_racks(after) == missing_racks(before):
        assert spread(loads(after)) <= spread(loads(before))
        if not plan.copies:
            assert leader_unevenness(plan.after, before) <= leader_unevenness(plan.before, before)
    assert balance_plan(after, BAND).is_empty, "a second plan is empty"


@given(clusters())
@settings(max_examples=examples(200))
def test_plans_do_not_depend_on_the_order_in_which_the_cluster_was_read(before: ClusterSnapshot) -> None:
    turned = ClusterSnapshot(
        dict(reversed(list(before.brokers.items()))), dict(reversed(list(before.partitions.items())))
    )
    assert balance_plan(turned, BAND) == balance_plan(before, BAND)
    for broker in sorted({*before.brokers, *before.absent}):
        assert drain_plan(turned, [broker]) == drain_plan(before, [broker])


@given(clusters(), st.data())
@settings(max_examples=examples(400))
def test_a_drain_moves_everything_or_says_what_stays(before: ClusterSnapshot, data: st.DataObject) -> None:
    known = sorted({*before.brokers, *before.absent})
    drained = data.draw(st.sets(st.sampled_from(known), min_size=1, max_size=2))
    plan = drain_plan(before, drained)
    after = check_plan(before, plan)
    stays = {(key, each) for key, part in after.partitions.items() for each in part.replicas if each in drained}
    assert stays == {(each.key, each.broker_id) for each in plan.blocked}
    assert all(each.reason for each in plan.blocked)
    for move in plan.moves:
        assert set(move.removed) <= drained, "nothing else moves"
        assert not drained & set(move.added)
    again = drain_plan(after, drained)
    assert again.copies == () or len(again.blocked) < len(plan.blocked)
