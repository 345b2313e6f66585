"""Where the replicas of new partitions go."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.controller.placement import assign_replicas

Brokers = st.dictionaries(st.integers(0, 30), st.sampled_from("abcd"), min_size=1, max_size=12)


@given(Brokers, st.data())
def test_replicas_are_on_different_brokers_and_in_as_many_racks_as_there_are(
    racks: dict[int, str], data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    start = data.draw(st.integers(0, len(racks) - 1))
    first = data.draw(st.integers(0, 50))
    for replicas in assign_replicas(dict(racks), factor, range(first, first + 40), start):
        assert len(set(replicas)) == factor
        assert set(replicas) <= racks.keys()
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(racks.values())))


@given(Brokers, st.integers(1, 5), st.booleans())
def test_every_broker_leads_as_many_partitions(racks: dict[int, str], rounds: int, has_racks: bool) -> None:
    brokers: dict[int, str | None] = {broker: rack if has_racks else None for broker, rack in racks.items()}
    assigned = assign_replicas(brokers, 1, range(rounds * len(racks)), 0)
    assert set(Counter(leader for (leader,) in assigned).values()) == {rounds}


def test_racks_of_the_same_size_share_the_followers_evenly() -> None:
    racks = {broker: "abc"[broker % 3] for broker in range(6)}
    assigned = assign_replicas(dict(racks), 3, range(36), 0)
    followers = Counter(broker for replicas in assigned for broker in replicas[1:])
    assert set(followers.values()) == {12}


def test_one_broker_without_a_rack_makes_racks_unknown() -> None:
    without = assign_replicas({1: None, 2: None, 3: None}, 2, range(12), 1)
    assert assign_replicas({1: "a", 2: "a", 3: None}, 2, range(12), 1) == without
    assert assign_replicas({1: "a", 2: "a", 3: "b"}, 2, range(12), 1) != without
