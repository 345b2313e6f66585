"""Which brokers receive the replicas of a drained broker, and what a drain cannot move."""

from __future__ import annotations

from headwater.cli.reassignment.drain import drain_plan
from headwater.cli.reassignment.plan import ReassignmentPlan
from headwater.cli.reassignment.snapshot import LogDirSnapshot
from tests.cluster_snapshots import brokers_of, cluster_of, partition_of


def assignments(plan: ReassignmentPlan) -> dict[str, tuple[int, ...]]:
    return {str(each.key): each.after for each in plan.moves}


def test_only_the_replicas_of_the_drained_broker_move_and_to_the_emptiest() -> None:
    snapshot = cluster_of(
        brokers_of(1, 2, 3, 4),
        partition_of("t-0", (1, 2), 100),
        partition_of("t-1", (2, 3), 50),
        partition_of("t-2", (3, 1), 10),
    )
    plan = drain_plan(snapshot, [1])
    assert {str(each.key): set(each.after) for each in plan.moves} == {"t-0": {2, 4}, "t-2": {3, 4}}
    assert plan.copied_bytes == 110
    assert plan.blocked == ()


def test_the_preferred_leader_is_the_broker_that_leads_the_fewest() -> None:
    snapshot = cluster_of(
        brokers_of(1, 2, 3), partition_of("t-0", (1, 2)), partition_of("t-1", (1, 2)), partition_of("t-2", (2, 3))
    )
    assert assignments(drain_plan(snapshot, [1])) == {"t-0": (3, 2), "t-1": (2, 3)}


def test_a_broker_that_is_away_is_drained_too() -> None:
    snapshot = cluster_of(
        brokers_of(1, 2, 4), partition_of("t-0", (3, 1, 2), leader=1, isr=(1, 2)), partition_of("t-1", (1, 3), isr=(1,))
    )
    plan = drain_plan(snapshot, [3])
    assert {str(each.key): set(each.after) for each in plan.moves} == {"t-0": {4, 1, 2}, "t-1": {1, 2}}


def test_what_cannot_move_has_its_reason() -> None:
    brokers = brokers_of(1, 2, 3)
    brokers |= brokers_of(4)
    full = LogDirSnapshot("a", 1_000, 60)
    snapshot = cluster_of(
        {each: broker if each < 4 else type(broker)(4, None, (full,)) for each, broker in brokers.items()},
        partition_of("large-0", (1, 2, 3), 20),
        partition_of("offline-0", (1, 9), leader=None),
        partition_of("small-0", (1, 2, 3), 5),
        partition_of("wide-0", (1, 2, 3, 4), 5),
    )
    plan = drain_plan(snapshot, [1])
    assert {name: set(after) for name, after in assignments(plan).items()} == {"small-0": {2, 3, 4}}
    reasons = {str(each.key): each.reason for each in plan.blocked}
    assert reasons == {
        "large-0": "no broker has room for its 20 bytes: 4",
        "offline-0": "it is offline, and there is nothing to copy from (brokers away: 9)",
        "wide-0": "each of the 3 other brokers has a replica already, of 4: add a broker",
    }


def test_a_racks_last_broker_is_drained_on_request_only() -> None:
    snapshot = cluster_of(brokers_of(1, 2, 3, racks="xxy"), partition_of("t-0", (1, 3)))
    [blocked] = drain_plan(snapshot, [3]).blocked
    assert blocked.reason == "no broker with room keeps its replicas in 2 racks; see --allow-fewer-racks"
    plan = drain_plan(snapshot, [3], allow_fewer_racks=True)
    assert assignments(plan) == {"t-0": (1, 2)}


def test_a_replica_stays_in_a_rack_of_its_own_before_it_goes_to_the_emptiest_broker() -> None:
    snapshot = cluster_of(
        brokers_of(1, 2, 3, 4, racks="xyxy"), partition_of("t-0", (1, 2), 10), partition_of("t-1", (3, 2), 100)
    )
    assert set(assignments(drain_plan(snapshot, [1]))["t-0"]) == {3, 2}


def test_two_brokers_are_drained_at_once() -> None:
    snapshot = cluster_of(brokers_of(1, 2, 3, 4), partition_of("t-0", (1, 2)))
    assert set(assignments(drain_plan(snapshot, [1, 2]))["t-0"]) == {3, 4}
