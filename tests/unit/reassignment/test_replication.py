"""Which brokers receive more replicas, such as those of a node that became a cluster."""

from __future__ import annotations

from headwater.cli.reassignment.replication import replication_plan
from headwater.cli.reassignment.snapshot import BrokerSnapshot, LogDirSnapshot
from tests.cluster_snapshots import brokers_of, cluster_of, partition_of


def test_the_partitions_of_a_migrated_node_get_replicas_on_all_brokers_and_keep_their_leader() -> None:
    snapshot = cluster_of(brokers_of(1, 2, 3), *(partition_of(f"t-{number}", (1,), 10) for number in range(4)))
    plan = replication_plan(snapshot, 3)
    assert {move.after[0] for move in plan.moves} == {1}
    assert {frozenset(move.added) for move in plan.moves} == {frozenset({2, 3})}
    assert plan.copied_bytes == 80
    assert plan.blocked == ()


def test_two_replicas_are_divided_among_the_other_brokers() -> None:
    snapshot = cluster_of(brokers_of(1, 2, 3), *(partition_of(f"t-{number}", (1,), 10) for number in range(4)))
    added = [move.added for move in replication_plan(snapshot, 2).moves]
    assert (added.count((2,)), added.count((3,))) == (2, 2)


def test_racks_come_before_bytes() -> None:
    brokers = brokers_of(1, 2, 3, racks=("a", "a", "b"))
    snapshot = cluster_of(brokers, partition_of("full-0", (3,), 500), partition_of("t-0", (1,), 10))
    moves = {str(move.key): move.after for move in replication_plan(snapshot, 2).moves}
    assert moves["t-0"] == (1, 3)


def test_partitions_with_enough_replicas_stay_as_they_are() -> None:
    snapshot = cluster_of(brokers_of(1, 2, 3), partition_of("t-0", (2, 3)), partition_of("u-0", (1, 2, 3)))
    assert replication_plan(snapshot, 2).is_empty


def test_what_cannot_be_added_has_its_reason() -> None:
    full = BrokerSnapshot(2, None, (LogDirSnapshot("a", 1_000, 60),))
    snapshot = cluster_of(
        brokers_of(1) | {2: full},
        partition_of("large-0", (1,), 20),
        partition_of("offline-0", (2,), leader=None),
        partition_of("wide-0", (1, 2), 5),
    )
    reasons = {str(each.key): each.reason for each in replication_plan(snapshot, 3).blocked}
    assert reasons == {
        "large-0": "no broker has room for its 20 bytes: 2",
        "offline-0": "it is offline, and there is nothing to copy from",
        "wide-0": "3 replicas need as many brokers, and 2 can receive replicas: add a broker",
    }
