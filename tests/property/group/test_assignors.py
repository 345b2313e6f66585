"""The server-side assignors: every partition once, balanced, sticky, and the same for the same question."""

from __future__ import annotations

import random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.logtier.group.assignors.assignor import Assignor, Subscriber
from headwater.logtier.group.assignors.range_assignor import RangeAssignor
from headwater.logtier.group.assignors.uniform_assignor import UniformAssignor
from tests.example_counts import examples

#: Of each property; drawing a group takes longer than assigning to it.
EXAMPLES = examples(40)

Members = dict[str, Subscriber]
Counts = dict[UUID, int]
Result = dict[str, dict[UUID, set[int]]]

TOPICS = [UUID(int=number) for number in range(1, 5)]
ASSIGNORS: list[Assignor] = [UniformAssignor(), RangeAssignor()]


@st.composite
def groups(draw: st.DrawFn, *, alike: bool = False) -> tuple[Members, Counts]:
    """Members with what they had before: sensibly shared, not at all, or in conflict."""
    counts = {topic: draw(st.integers(0, 7)) for topic in TOPICS}
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True))
    common = draw(st.frozensets(st.sampled_from(TOPICS)))
    members = {}
    for name in names:
        topics = common if alike else draw(st.frozensets(st.sampled_from(TOPICS)))
        target = draw(
            st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 9), min_size=1, max_size=5))
        )
        members[name] = Subscriber(draw(st.sampled_from([None, None, f"i-{name}"])), topics, target)
    return members, {topic: counts[topic] for topic in set().union(*(each.topic_ids for each in members.values()))}


def loads(result: Result) -> dict[str, int]:
    return {name: sum(map(len, partitions.values())) for name, partitions in result.items()}


def owners(result: Result) -> dict[tuple[UUID, int], str]:
    found: dict[tuple[UUID, int], str] = {}
    for name, partitions in result.items():
        for topic, indexes in partitions.items():
            for index in indexes:
                assert (topic, index) not in found, f"{topic}-{index} has two owners"
                found[topic, index] = name
    return found


def again(members: Members, result: Result) -> Members:
    """The same members, with the result as what they have."""
    return {
        name: Subscriber(member.instance_id, member.topic_ids, {t: frozenset(i) for t, i in result[name].items()})
        for name, member in members.items()
    }


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
@settings(max_examples=EXAMPLES)
@given(group=groups())
def test_every_partition_goes_to_exactly_one_member_that_wants_it(
    assignor: Assignor, group: tuple[Members, Counts]
) -> None:
    members, counts = group
    result = assignor.assign(members, counts)
    assert set(result) == set(members)
    assert set(owners(result)) == {(topic, index) for topic, count in counts.items() for index in range(count)}
    for name, partitions in result.items():
        assert set(partitions) <= members[name].topic_ids


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
@settings(max_examples=EXAMPLES)
@given(group=groups(), seed=st.integers(0, 100))
def test_the_order_in_which_members_are_named_does_not_matter(
    assignor: Assignor, group: tuple[Members, Counts], seed: int
) -> None:
    members, counts = group
    shuffled = list(members.items())
    random.Random(seed).shuffle(shuffled)
    assert assignor.assign(dict(shuffled), counts) == assignor.assign(members, counts)


@settings(max_examples=EXAMPLES)
@given(group=groups(alike=True))
def test_members_that_want_the_same_topics_differ_by_one_partition_at_most(group: tuple[Members, Counts]) -> None:
    members, counts = group
    shares = loads(UniformAssignor().assign(members, counts)).values()
    assert max(shares) - min(shares) <= 1


@settings(max_examples=EXAMPLES)
@given(group=groups(alike=True))
def test_a_member_loses_a_partition_only_above_its_share(group: tuple[Members, Counts]) -> None:
    members, counts = group
    result = UniformAssignor().assign(members, counts)
    share = sum(counts.values()) // len(members)
    claimed: set[tuple[UUID, int]] = set()
    for name in sorted(
        members, key=lambda each: (members[each].instance_id is None, members[each].instance_id or each)
    ):
        member = members[name]
        valid = {
            (topic, index)
            for topic, indexes in member.target.items()
            if topic in member.topic_ids
            for index in indexes
            if index < counts[topic]
        } - claimed
        claimed |= valid
        mine = {(topic, index) for topic, indexes in result[name].items() for index in indexes}
        if len(valid) <= share:
            assert valid <= mine
        else:
            assert len(mine & valid) == len(mine)


@settings(max_examples=EXAMPLES)
@given(group=groups())
def test_no_single_move_brings_two_members_closer(group: tuple[Members, Counts]) -> None:
    members, counts = group
    result = UniformAssignor().assign(members, counts)
    share = loads(result)
    for (topic, _), owner in owners(result).items():
        for name, member in members.items():
            if topic in member.topic_ids:
                assert share[owner] - share[name] <= 1


@settings(max_examples=EXAMPLES)
@given(group=groups())
def test_a_balanced_group_stays_as_it_is(group: tuple[Members, Counts]) -> None:
    members, counts = group
    result = UniformAssignor().assign(members, counts)
    assert UniformAssignor().assign(again(members, result), counts) == result


@settings(max_examples=EXAMPLES)
@given(group=groups(alike=True), leaver=st.sampled_from("abcdefgh"))
def test_when_a_member_goes_the_others_keep_what_they_have(group: tuple[Members, Counts], leaver: str) -> None:
    members, counts = group
    before = UniformAssignor().assign(members, counts)
    left = {name: member for name, member in again(members, before).items() if name != leaver}
    if not left:
        return
    after = UniformAssignor().assign(left, counts)
    for name in left:
        for topic, indexes in before[name].items():
            assert indexes <= after[name].get(topic, set())


def test_ranges_are_contiguous_and_the_first_members_get_one_more() -> None:
    a, b = TOPICS[:2]
    both = frozenset({a, b})
    members = {name: Subscriber(None, both, {}) for name in ("z", "y", "x")}
    assert RangeAssignor().assign(members, {a: 7, b: 2}) == {
        "x": {a: {0, 1, 2}, b: {0}},
        "y": {a: {3, 4}, b: {1}},
        "z": {a: {5, 6}},
    }


def test_a_static_member_keeps_its_range_under_a_new_id() -> None:
    topic = TOPICS[0]
    wants = frozenset({topic})
    before = {"m-1": Subscriber("one", wants, {}), "m-2": Subscriber("two", wants, {})}
    after = {"a-9": Subscriber("two", wants, {}), "m-1": Subscriber("one", wants, {})}
    assert RangeAssignor().assign(before, {topic: 4})["m-2"] == RangeAssignor().assign(after, {topic: 4})["a-9"]


def test_a_member_of_many_gets_some_of_every_topic() -> None:
    members = {name: Subscriber(None, frozenset(TOPICS), {}) for name in "abc"}
    result = UniformAssignor().assign(members, dict.fromkeys(TOPICS, 3))
    assert all(set(partitions) == set(TOPICS) for partitions in result.values())
