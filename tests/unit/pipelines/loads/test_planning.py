from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.offsets.chain import chain_after
from headwater.pipelines.loads.offsets.planning import LogState, TargetState, Wanted, decide, default_id
from headwater.pipelines.loads.offsets.positions import PositionKind, parse_position
from headwater.pipelines.loads.offsets.ranges import Ranges, described, from_json, joined, minus, shared, size, to_json
from headwater.pipelines.loads.targets.delta_marks import TableLoads, marks_of

NOW_MS = 1_357_048_800_000  # 2013-01-01T14:00:00Z
HOUR_MS = 3_600_000
LOG = LogState(
    "flights",
    "id",
    {0: 10, 1: 0},
    {0: 100, 1: 50},
    {NOW_MS - HOUR_MS: {0: 40, 1: 20}, NOW_MS: {0: 80, 1: 50}},
)


def decided(start: str, until: str, target: TargetState | None = None, **more: Any) -> tuple[Ranges, Ranges]:
    wanted = Wanted(parse_position(start), parse_position(until), **more)
    return decide(wanted, LOG, target or TargetState(), NOW_MS)


@pytest.mark.parametrize(
    ("start", "until", "ranges"),
    [
        ("earliest", "latest", {0: ((10, 100),), 1: ((0, 50),)}),
        ("last", "latest", {0: ((10, 100),), 1: ((0, 50),)}),
        ("2013-01-01T13:00:00Z", "2013-01-01T14:00:00Z", {0: ((40, 80),), 1: ((20, 50),)}),
        ("20", "50", {0: ((20, 50),), 1: ((20, 50),)}),
        ("0:20", "0:30", {0: ((20, 30),)}),
        ("earliest", "1:30", {1: ((0, 30),)}),
        ("1:5", "latest", {1: ((5, 50),)}),
        ("30", "30", {}),
    ],
)
def test_positions_become_offsets(start: str, until: str, ranges: Ranges) -> None:
    assert decided(start, until) == (ranges, {})


def test_the_last_load_is_where_the_next_begins() -> None:
    loaded = TargetState({0: ((10, 60),)}, {0: 60})
    assert decided("last", "latest", loaded) == ({0: ((60, 100),), 1: ((0, 50),)}, {})
    # A later hour was loaded before: `last` does not load it again.
    ahead = TargetState({0: ((10, 60), (80, 90))}, {0: 60})
    assert decided("last", "latest", ahead)[0][0] == ((60, 80), (90, 100))
    assert decided("last", "2013-01-01T13:00:00Z", loaded) == ({1: ((0, 20),)}, {})


@pytest.mark.parametrize(
    ("start", "until", "message"),
    [
        ("earliest", "101", r"--until is offset 101 of flights-0, which ends at 100: wait for the records"),
        ("50", "40", r"flights-0 would be loaded from offset 50 until 40: --until lies before --from"),
        ("2013-01-01T14:00:00Z", "2013-01-01T13:00:00Z", "--until lies before --from"),
        ("earliest", "2013-01-01T14:00:01Z", "--until 2013-01-01T14:00:01Z lies in the future"),
        ("2:5", "latest", "--from names partition 2, and flights has the partitions 0 to 1"),
        ("5", "50", r"5 offsets of flights are gone by retention before they were loaded \(partition 0: 5 to 9\)"),
    ],
)
def test_what_cannot_be_loaded_is_refused(start: str, until: str, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        decided(start, until)


def test_what_the_target_has_is_refused_or_left_out() -> None:
    loaded = TargetState({0: ((30, 40), (50, 60))}, {0: 40})
    with pytest.raises(LoadError, match=r"\(partition 0: 30 to 39, 50 to 54\): --missing loads what it lacks"):
        decided("0:10", "0:55", loaded)
    assert decided("0:10", "0:55", loaded, missing=True) == ({0: ((10, 30), (40, 50))}, {})


def test_gaps_are_recorded_where_that_is_wanted() -> None:
    assert decided("5", "12", record_gaps=True) == ({0: ((10, 12),), 1: ((5, 12),)}, {0: ((5, 10),)})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("latest", PositionKind.LATEST),
        (" 12 ", PositionKind.OFFSETS),
        ("@1357048800000", PositionKind.TIME),
        ("2013-01-01", PositionKind.TIME),
    ],
)
def test_positions_are_parsed(text: str, kind: PositionKind) -> None:
    assert parse_position(text).kind is kind


@pytest.mark.parametrize(
    "text",
    ["", "soon", "-1", "0:", "0:1,0:2", "1:2:3", "99999999999999999999", "0:99999999999999999999", "٣", "@1969-01-01"],
)
def test_others_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a position|no partition|twice|before 1970"):
        parse_position(text)


def test_a_range_has_one_name() -> None:
    assert default_id("t", {0: ((1, 2),)}) == default_id("t", {0: ((1, 2),)})
    assert default_id("t", {0: ((1, 2),)}) != default_id("u", {0: ((1, 2),)})


SPANS = st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda p: (p[0], p[0] + p[1]))
RANGES = st.dictionaries(st.integers(0, 2), st.lists(SPANS, max_size=4).map(tuple), max_size=3).map(joined)


def offsets(ranges: Ranges) -> set[tuple[int, int]]:
    return {(p, o) for p, parts in ranges.items() for start, end in parts for o in range(start, end)}


@given(RANGES, RANGES)
def test_ranges_are_sets_of_offsets(left: Ranges, right: Ranges) -> None:
    assert offsets(joined(left, right)) == offsets(left) | offsets(right)
    assert offsets(shared(left, right)) == offsets(left) & offsets(right)
    assert offsets(minus(left, right)) == offsets(left) - offsets(right)
    assert size(left) == len(offsets(left))
    assert from_json(to_json(left)) == left
    for parts in joined(left, right).values():
        assert all(before[1] < after[0] for before, after in itertools.pairwise(parts))


@given(st.lists(RANGES, max_size=6))
def test_a_tables_marks_say_what_it_has(loads: list[Ranges]) -> None:
    """The marks of each commit, as Delta keeps them: the last version of each appId."""
    marks: dict[str, int] = {}
    state = TargetState()
    for sequence, wanted in enumerate(loads, 1):
        new = minus(wanted, state.coverage)
        marks |= marks_of("id", sequence, state, new)
        state = TargetState(joined(state.coverage, new), chain_after(state, new))
        assert TableLoads.of(marks, "id") == TableLoads(sequence, state)


def test_another_topics_marks_are_refused() -> None:
    with pytest.raises(LoadError, match="of a topic made anew"):
        TableLoads.of({"headwater.load/other": 1}, "id")


def test_many_partitions_are_shown_in_part() -> None:
    assert described(dict.fromkeys(range(9), ((0, 5),))).endswith("partition 4: 0 to 4, and 4 more partitions")


@pytest.mark.parametrize("value", [None, [], {"0": 5}, {"x": [[1, 2]]}, {"0": [[1]]}])
def test_what_is_no_range_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="are no ranges of offsets"):
        from_json(value)
