"""What a balance evens out, and what it leaves as it is."""

from __future__ import annotations

from collections import Counter

import pytest

from headwater.cli.reassignment.balance import balance_plan
from headwater.cli.reassignment.band import BalanceBand
from headwater.cli.reassignment.plan import BrokerLoad
from headwater.cli.reassignment.snapshot import ClusterSnapshot, LogDirSnapshot, PartitionSnapshot
from tests.cluster_snapshots import brokers_of, carried_out, cluster_of, partition_of

MB = 1 << 20
BAND = BalanceBand(10, 0)


def three_brokers_with(partitions: int, size_bytes: int) -> list[PartitionSnapshot]:
    orders = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
    return [partition_of(f"t-{number}", orders[number % 3], size_bytes) for number in range(partitions)]


def by_broker(loads: tuple[BrokerLoad, ...]) -> dict[int, BrokerLoad]:
    return {each.broker_id: each for each in loads}


@pytest.mark.parametrize("size_bytes", [0, 100 * MB])
def test_an_empty_broker_gets_its_share_and_no_replica_moves_between_the_others(size_bytes: int) -> None:
    snapshot = cluster_of(brokers_of(1, 2, 3, 4), *three_brokers_with(40, size_bytes))
    plan = balance_plan(snapshot)
    after = by_broker(plan.after)
    assert {move.added for move in plan.copies} == {(4,)}
    assert all(27 <= after[each].replicas <= 33 for each in (1, 2, 3, 4))
    assert all(after[each].leaders == 10 for each in (1, 2, 3, 4))
    assert balance_plan(carried_out(snapshot, plan)).is_empty


def test_an_even_cluster_is_left_alone() -> None:
    snapshot = cluster_of(brokers_of(1, 2, 3), *three_brokers_with(30, 5 * MB))
    assert balance_plan(snapshot).is_empty


def test_a_difference_within_the_threshold_is_left_alone() -> None:
    snapshot = cluster_of(
        brokers_of(1, 2),
        partition_of("t-0", (1,), 108),
        partition_of("t-1", (2,), 92),
    )
    assert balance_plan(snapshot, BAND).is_empty
    assert not balance_plan(snapshot, BalanceBand(1, 200)).copies, "below what is negligible"


def test_bytes_are_balanced_by_the_fewest_bytes_that_do() -> None:
    sizes = (40, 30, 20, 10)
    snapshot = cluster_of(
        brokers_of(1, 2), *(partition_of(f"t-{index}", (1,), size) for index, size in enumerate(sizes))
    )
    plan = balance_plan(snapshot, BAND)
    assert plan.copied_bytes == 50
    assert [each.size_bytes for each in plan.after] == [50, 50]


def test_racks_come_first() -> None:
    snapshot = cluster_of(
        brokers_of(1, 2, 3, racks="xxy"), partition_of("t-0", (1, 2), 10), partition_of("t-1", (3,), 1_000)
    )
    plan = balance_plan(snapshot, BAND)
    [move] = [each for each in plan.moves if each.key.partition == 0]
    assert 3 in move.after


def test_no_replica_leaves_a_rack_for_the_sake_of_bytes() -> None:
    snapshot = cluster_of(brokers_of(1, 2, 3, racks="xxy"), *(partition_of(f"t-{n}", (1, 3), 10) for n in range(4)))
    plan = balance_plan(snapshot, BAND)
    assert all(3 in move.after and len(move.after) == 2 for move in plan.moves)
    assert Counter(move.added for move in plan.copies) == {(2,): 2}


def test_no_broker_is_filled_beyond_its_room() -> None:
    brokers = brokers_of(1)
    brokers[2] = type(brokers[1])(2, None, (LogDirSnapshot("a", 100, 25),))
    snapshot = cluster_of(brokers, *(partition_of(f"t-{n}", (1,), 10) for n in range(6)))
    plan = balance_plan(snapshot, BAND)
    assert len(plan.copies) == 2, "5 of the 25 bytes stay free"


def test_leaders_are_balanced_over_a_broker_in_between_and_copy_nothing() -> None:
    """1 and 3 have no partition in common: 2 takes one of 1 and gives one to 3."""
    snapshot = cluster_of(
        brokers_of(1, 2, 3), *(partition_of(f"a-{n}", (1, 2)) for n in range(3)), partition_of("b-0", (2, 3))
    )
    even = cluster_of(
        brokers_of(1, 2, 3),
        *(partition_of(f"a-{n}", (1, 2)) for n in range(2)),
        partition_of("b-0", (2, 3)),
        partition_of("c-0", (2, 3)),
    )
    for each, leaders in ((snapshot, [2, 1, 1]), (even, [1, 2, 1])):
        plan = balance_plan(each, BalanceBand(100, 0))
        assert not plan.copies
        assert sorted(load.leaders for load in plan.after) == sorted(leaders)


def test_bytes_of_leaders_are_balanced_by_exchanges_that_keep_the_counts() -> None:
    sizes = {(1, 2): (100, 90), (2, 1): (10, 20)}
    parts = [
        partition_of(f"t{replicas[0]}-{index}", replicas, size)
        for replicas, two in sizes.items()
        for index, size in enumerate(two)
    ]
    plan = balance_plan(cluster_of(brokers_of(1, 2), *parts), BAND)
    assert not plan.copies
    assert [each.leaders for each in plan.after] == [2, 2]
    assert max(each.leader_bytes for each in plan.after) == 110


def test_a_preferred_leader_in_sync_that_does_not_lead_is_elected() -> None:
    snapshot = cluster_of(
        brokers_of(1, 2),
        partition_of("t-0", (1, 2), leader=2),
        partition_of("t-1", (2, 1)),
        partition_of("u-0", (1, 2), leader=2, isr=(2,)),
        partition_of("u-1", (2, 1)),
    )
    plan = balance_plan(snapshot)
    assert [str(each) for each in plan.elections] == ["t-0"]
    assert not plan.moves


def test_replicas_on_a_broker_that_is_away_stay() -> None:
    snapshot = cluster_of(brokers_of(1, 2), *(partition_of(f"t-{n}", (3, 1), 10, leader=1, isr=(1,)) for n in range(6)))
    plan = balance_plan(snapshot, BAND)
    assert plan.copies
    assert all(3 in move.after for move in plan.moves)


def test_log_folders_of_a_broker_are_balanced() -> None:
    parts = [partition_of(f"t-{n}", (1,), 10) for n in range(8)]
    snapshot = cluster_of(brokers_of(1, dirs=("a", "b")), *parts)
    plan = balance_plan(snapshot, BAND)
    assert not plan.moves
    assert len(plan.log_dir_moves) == 4
    assert {(each.source, each.target) for each in plan.log_dir_moves} == {("a", "b")}


def test_a_broker_with_several_folders_creates_replicas_where_the_plan_says() -> None:
    brokers = brokers_of(1) | brokers_of(2, dirs=("a", "b"))
    plan = balance_plan(cluster_of(brokers, *(partition_of(f"t-{n}", (1,), 10) for n in range(4))), BAND)
    assert sorted(each.log_dirs for each in plan.copies) == [((2, "a"),), ((2, "b"),)]


def test_a_cluster_without_partitions_or_brokers_needs_nothing() -> None:
    assert balance_plan(cluster_of(brokers_of(1, 2))).is_empty
    assert balance_plan(ClusterSnapshot({}, {})).is_empty
