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


@given(Brokers, st.booleans(), st.data())
def test_replicas_are_on_absent_brokers_only_if_the_others_or_their_racks_are_too_few(
    racks: dict[int, str], has_racks: bool, data: st.DataObject
) -> None:
    brokers: dict[int, str | None] = {broker: rack if has_racks else None for broker, rack in racks.items()}
    rack_of = racks if has_racks else {broker: str(broker) for broker in racks}
    away = data.draw(st.sets(st.sampled_from(sorted(racks)), max_size=len(racks) - 1))
    present = racks.keys() - away
    factor = data.draw(st.integers(1, len(racks)))
    first = data.draw(st.integers(0, 50))
    for replicas in assign_replicas(brokers, factor, range(first, first + 20), data.draw(st.integers(0, 20)), away):
        assert len(set(replicas)) == factor
        assert set(replicas) <= racks.keys()
        assert replicas[0] in present
        assert list(replicas) == sorted(replicas, key=lambda broker: broker in away)
        covered = {rack_of[broker] for broker in replicas}
        assert len(covered) == min(factor, len(set(rack_of.values())))
        for absent in away.intersection(replicas):
            others = {rack_of[broker] for broker in replicas if broker != absent}
            for unused in present.difference(replicas):
                assert len(others | {rack_of[unused]}) < len(covered)


@given(Brokers, st.booleans(), st.data())
def test_brokers_that_are_not_away_lead_as_if_there_were_no_others(
    racks: dict[int, str], has_racks: bool, data: st.DataObject
) -> None:
    brokers: dict[int, str | None] = {broker: rack if has_racks else None for broker, rack in racks.items()}
    away = data.draw(st.sets(st.sampled_from(sorted(racks)), max_size=len(racks) - 1))
    present = {broker: rack for broker, rack in brokers.items() if broker not in away}
    factor = data.draw(st.integers(1, len(present)))
    assigned = assign_replicas(brokers, factor, range(3 * len(present)), 1, away)
    assert set(Counter(replicas[0] for replicas in assigned).values()) == {3}
    if not has_racks:
        assert assigned == assign_replicas(present, factor, range(3 * len(present)), 1)


def test_a_rack_whose_brokers_are_all_away_is_used_rather_than_one_rack_twice() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b"}
    assert assign_replicas(racks, 2, range(4), 0, away={3, 4}) == [(1, 3), (2, 4), (1, 3), (2, 4)]
    assert assign_replicas(racks, 2, range(3), 0, away={4}) == [(1, 3), (3, 2), (2, 3)]
    assert assign_replicas(racks, 3, range(3), 0, away={4}) == [(1, 3, 2), (3, 2, 1), (2, 3, 1)]


def test_absent_brokers_share_the_replicas_that_the_others_cannot_have() -> None:
    assigned = assign_replicas(dict.fromkeys(range(5)), 4, range(10), 0, away={3, 4})
    assert Counter(replicas[-1] for replicas in assigned) == {3: 5, 4: 5}
    alone = assign_replicas(dict.fromkeys(range(5)), 2, range(8), 0, away={1, 2, 3, 4})
    assert Counter(alone) == {(0, absent): 2 for absent in (1, 2, 3, 4)}
