"""Intervals that follow each other lose no record and load none twice, in whatever order they are loaded."""

from __future__ import annotations

import pytest

from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.offsets.intervals import bounds_of, interval_id, neighbours, parse_interval
from headwater.pipelines.loads.offsets.planning import LogState, TargetState, Wanted, decide
from headwater.pipelines.loads.targets.manifest import LoadPlan

HOUR = 3_600_000
FIVE = 1_357_016_400_000  # 2013-01-01T05:00:00Z
SIX = FIVE + HOUR
SEVEN = SIX + HOUR
ID = "0b5f0d3e-4a4c-4f7e-9b3b-000000000001"


def log(at: dict[int, dict[int, int]], end: dict[int, int], first: dict[int, int] | None = None) -> LogState:
    return LogState("flights", ID, first or dict.fromkeys(end, 0), end, at)


def test_an_interval_without_neighbours_starts_and_ends_at_its_times() -> None:
    state = log({FIVE: {0: 10, 1: 4}, SIX: {0: 20, 1: 4}}, {0: 30, 1: 9})
    assert bounds_of(state, FIVE, SIX, [], []) == {0: (10, 20), 1: (4, 4)}


def test_it_starts_where_the_interval_before_ended_also_where_that_one_was_empty() -> None:
    # A late record came at offset 4 of partition 1, after the interval before had found nothing there.
    state = log({SIX: {0: 22, 1: 5}, SEVEN: {0: 30, 1: 9}}, {0: 30, 1: 9})
    assert bounds_of(state, SIX, SEVEN, [{0: (10, 20), 1: (4, 4)}], []) == {0: (20, 30), 1: (4, 9)}


def test_a_backfilled_interval_ends_where_the_next_one_starts() -> None:
    state = log({FIVE: {0: 10}, SIX: {0: 21}}, {0: 30})
    assert bounds_of(state, FIVE, SIX, [], [{0: (18, 30)}]) == {0: (10, 18)}


def test_of_several_neighbours_the_widest_counts() -> None:
    state = log({SIX: {0: 22}, SEVEN: {0: 40}}, {0: 50})
    assert bounds_of(state, SIX, SEVEN, [{0: (10, 20)}, {0: (0, 21)}], [{0: (38, 50)}, {0: (39, 45)}]) == {0: (21, 38)}


def test_a_partition_that_is_newer_than_the_interval_before_is_loaded_from_its_first_record() -> None:
    state = log({SIX: {0: 22, 1: 3}, SEVEN: {0: 30, 1: 8}}, {0: 30, 1: 9}, {0: 0, 1: 1})
    assert bounds_of(state, SIX, SEVEN, [{0: (10, 20)}], [])[1] == (1, 8)


def test_a_start_beyond_the_end_is_an_empty_range() -> None:
    state = log({SIX: {0: 22}, SEVEN: {0: 25}}, {0: 30})
    assert bounds_of(state, SIX, SEVEN, [{0: (10, 27)}], []) == {0: (27, 27)}


def test_what_retention_took_between_two_intervals_is_a_gap() -> None:
    start, end = parse_interval("2013-01-01T06:00:00Z/2013-01-01T07:00:00Z")
    state = log({SIX: {0: 25}, SEVEN: {0: 40}}, {0: 50}, {0: 25})
    bounds = bounds_of(state, SIX, SEVEN, [{0: (10, 20)}], [])
    wanted = Wanted(start, end, missing=True, is_interval=True)
    with pytest.raises(LoadError, match="5 offsets of flights are gone by retention"):
        decide(wanted, state, TargetState(), SEVEN, bounds)
    ranges, gaps = decide(Wanted(start, end, True, True, True), state, TargetState(), SEVEN, bounds)
    assert (ranges, gaps) == ({0: ((25, 40),)}, {0: ((20, 25),)})


def test_an_interval_in_the_future_is_refused() -> None:
    start, end = parse_interval("2013-01-01T06:00:00Z/2013-01-01T07:00:00Z")
    state = log({SIX: {0: 25}, SEVEN: {0: 40}}, {0: 50})
    with pytest.raises(LoadError, match="lies in the future"):
        decide(Wanted(start, end, True, False, True), state, TargetState(), SEVEN - 1, {0: (25, 40)})


def test_neighbours_are_found_by_name_whatever_their_length() -> None:
    names = [interval_id(FIVE, SIX), interval_id(SIX - 60_000, SIX), interval_id(SEVEN, SEVEN + HOUR), "last-20130101"]
    assert neighbours(names, SIX, SEVEN) == (names[:2], names[2:3])


def test_a_plan_keeps_the_bounds_of_partitions_without_records() -> None:
    plan = LoadPlan(
        interval_id(FIVE, SIX), "flights", ID, {0: ((10, 20),)}, {}, ("a", "b"), "", {0: (10, 20), 1: (4, 4)}
    )
    assert LoadPlan.decode(plan.encode(), "plan.json") == plan


@pytest.mark.parametrize("text", ["2013-01-01T05:00:00Z", "earliest/2013-01-01T05:00:00Z", "a/b", "47/48", "/"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_interval(text)
