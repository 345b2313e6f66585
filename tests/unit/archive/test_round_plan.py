"""A round takes the offsets that the table lacks: each of them once, or it is said to be in a gap."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.archive.marks import ArchiveState, marks_of
from headwater.pipelines.archive.round_plan import OnGap, RoundPlan, cut, plan_round
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.ranges import Range, joined

TOPIC_ID = "0b5f0d3e-4a4c-4f7e-9b3b-000000000001"
MANY = 1_000_000


def log_of(**bounds: Range) -> LogState:
    """A log by the first offset and the end of its partitions p0, p1, ..."""
    parts = {int(name.removeprefix("p")): each for name, each in bounds.items()}
    return LogState(
        "flights", TOPIC_ID, {p: first for p, (first, _) in parts.items()}, {p: end for p, (_, end) in parts.items()}
    )


def planned(
    log: LogState,
    ends: Mapping[int, int] | None = None,
    begin: Mapping[int, int] | None = None,
    *,
    on_gap: OnGap = "fail",
    offsets_max: int = MANY,
) -> RoundPlan:
    return plan_round(ArchiveState(ends or {}), log, begin or log.first, on_gap=on_gap, offsets_max=offsets_max)


# -- where an archive begins -------------------------------------------------------------------------------------------


def test_a_new_archive_from_earliest_takes_the_whole_log() -> None:
    assert planned(log_of(p0=(0, 9), p1=(0, 4))) == RoundPlan({0: (0, 9), 1: (0, 4)}, {}, {0: 9, 1: 4}, 0)


def test_what_retention_took_before_the_archive_began_is_a_gap_under_both_rules() -> None:
    expected = RoundPlan({0: (3, 9)}, {0: ((0, 3),)}, {0: 9}, 0)
    assert planned(log_of(p0=(3, 9))) == planned(log_of(p0=(3, 9)), on_gap="record") == expected


def test_a_new_archive_from_latest_takes_nothing_and_says_where_it_begins() -> None:
    log = log_of(p0=(3, 9), p1=(0, 0))
    plan = planned(log, begin=log.end)
    assert plan == RoundPlan({}, {0: ((0, 9),)}, {0: 9, 1: 0}, 0)
    assert plan.offsets == 0
    assert not plan.is_empty, "its beginning must be in the table before the next record comes"


def test_a_new_archive_from_an_offset_has_those_before_it_in_a_gap() -> None:
    plan = planned(log_of(p0=(3, 9), p1=(0, 20)), begin={0: 5, 1: 20})
    assert plan == RoundPlan({0: (5, 9)}, {0: ((0, 5),), 1: ((0, 20),)}, {0: 9, 1: 20}, 0)


def test_an_archive_does_not_begin_before_its_log() -> None:
    assert planned(log_of(p0=(3, 9)), begin={0: 1}) == planned(log_of(p0=(3, 9)))


def test_a_begun_archive_does_not_look_at_where_new_ones_begin() -> None:
    assert planned(log_of(p0=(0, 9)), {0: 2}, {0: 7}).ranges == {0: (2, 9)}


def test_partitions_without_records_are_begun() -> None:
    log = log_of(p0=(0, 0), p1=(7, 7))
    assert planned(log) == RoundPlan({}, {1: ((0, 7),)}, {0: 0, 1: 7}, 0)
    assert planned(log, {0: 0, 1: 7}).is_empty


def test_a_log_that_ends_before_it_begins_is_begun_at_its_first_offset() -> None:
    """Its last stable offset was asked of a leader that has not heard of the deleted records."""
    assert planned(log_of(p0=(5, 3))) == RoundPlan({}, {0: ((0, 5),)}, {0: 5}, 0)


# -- where it goes on --------------------------------------------------------------------------------------------------


def test_a_round_begins_where_the_table_ends() -> None:
    plan = planned(log_of(p0=(0, 9), p1=(2, 4), p2=(0, 5)), {0: 4, 1: 2, 2: 5})
    assert plan == RoundPlan({0: (4, 9), 1: (2, 4)}, {}, {0: 9, 1: 4}, 0)
    assert plan.offsets == 7


def test_there_is_no_round_for_a_table_that_is_as_far_as_the_log() -> None:
    plan = planned(log_of(p0=(0, 9), p1=(4, 4)), {0: 9, 1: 4})
    assert plan == RoundPlan()
    assert plan.is_empty


def test_retention_that_took_nothing_new_is_no_gap() -> None:
    assert planned(log_of(p0=(4, 9)), {0: 4}) == RoundPlan({0: (4, 9)}, {}, {0: 9}, 0)


def test_a_gap_fails_the_round_and_says_which_offsets_are_gone() -> None:
    with pytest.raises(ArchiveError, match="the offsets 4 to 6 of flights-1 were deleted by retention"):
        planned(log_of(p0=(0, 9), p1=(7, 9)), {0: 4, 1: 4})


def test_a_gap_is_recorded_and_the_round_goes_on_behind_it() -> None:
    plan = planned(log_of(p0=(0, 9), p1=(7, 9)), {0: 4, 1: 4}, on_gap="record")
    assert plan == RoundPlan({0: (4, 9), 1: (7, 9)}, {1: ((4, 7),)}, {0: 9, 1: 9}, 0)


def test_a_gap_up_to_the_end_of_the_log_is_recorded_without_a_range() -> None:
    plan = planned(log_of(p0=(9, 9)), {0: 4}, on_gap="record")
    assert plan == RoundPlan({}, {0: ((4, 9),)}, {0: 9}, 0)
    assert not plan.is_empty


@pytest.mark.parametrize("on_gap", ["fail", "record"])
def test_offsets_beyond_the_end_of_the_log_fail_under_both_rules(on_gap: OnGap) -> None:
    with pytest.raises(
        ArchiveFailed, match=r"the table is at offset 12 of flights-1, which ends at 9: .*name another table$"
    ):
        planned(log_of(p0=(0, 9), p1=(0, 9)), {0: 4, 1: 12}, on_gap=on_gap)


def test_a_partition_added_later_begins_with_its_log_wherever_the_archive_began() -> None:
    log = log_of(p0=(0, 9), p1=(0, 5), p2=(0, 0))
    for begin in (log.end, dict.fromkeys(log.end, 4)):
        assert planned(log, {0: 9}, begin) == RoundPlan({1: (0, 5)}, {}, {1: 5, 2: 0}, 0)


def test_what_retention_took_of_a_partition_added_later_is_a_gap_like_any_other() -> None:
    log = log_of(p0=(0, 9), p1=(3, 8))
    with pytest.raises(ArchiveError, match="the offsets 0 to 2 of flights-1 were deleted by retention"):
        planned(log, {0: 9}, log.end)
    assert planned(log, {0: 9}, log.end, on_gap="record") == RoundPlan({1: (3, 8)}, {1: ((0, 3),)}, {1: 8}, 0)


def test_a_partition_that_the_topic_lacks_is_refused() -> None:
    with pytest.raises(ArchiveError, match="the table has partition 1 of flights, which the topic has no more"):
        planned(log_of(p0=(0, 9)), {0: 4, 1: 3, 2: 5})


# -- how much it takes -------------------------------------------------------------------------------------------------


def test_the_limit_is_shared_by_what_each_partition_lacks() -> None:
    plan = planned(log_of(p0=(0, 1000), p1=(0, 200), p2=(0, 50)), {0: 100, 1: 100, 2: 50}, offsets_max=10)
    assert plan == RoundPlan({0: (100, 109), 1: (100, 101)}, {}, {0: 109, 1: 101}, 990)
    assert plan.offsets == 10


def test_offsets_in_a_gap_do_not_count_for_the_limit() -> None:
    plan = planned(log_of(p0=(500, 504), p1=(0, 4)), {0: 0, 1: 0}, on_gap="record", offsets_max=4)
    assert plan == RoundPlan({0: (500, 502), 1: (0, 2)}, {0: ((0, 500),)}, {0: 502, 1: 2}, 4)


def test_a_partition_without_a_share_is_begun_with_its_gap() -> None:
    plan = planned(log_of(p0=(0, 9), p1=(3, 4)), offsets_max=1)
    assert plan == RoundPlan({0: (0, 1)}, {1: ((0, 3),)}, {0: 1, 1: 3}, 9)


def test_a_gap_of_a_partition_without_a_share_is_recorded() -> None:
    plan = planned(log_of(p0=(0, 9), p1=(3, 4)), {0: 0, 1: 2}, on_gap="record", offsets_max=1)
    assert plan == RoundPlan({0: (0, 1)}, {1: ((2, 3),)}, {0: 1, 1: 3}, 9)


def test_a_begun_partition_without_a_share_does_not_move() -> None:
    assert planned(log_of(p0=(0, 9), p1=(0, 1)), {0: 0, 1: 0}, offsets_max=1).ends == {0: 1}


def test_the_limit_is_reached_only_by_more_offsets() -> None:
    log = log_of(p0=(0, 6), p1=(0, 4))
    assert planned(log, offsets_max=10).backlog == 0
    assert planned(log, offsets_max=9).backlog == 1


# -- a round that stops before an offset -------------------------------------------------------------------------------


def test_a_round_that_stops_before_an_offset_leaves_the_rest_to_later_ones() -> None:
    plan = planned(log_of(p0=(3, 9), p1=(0, 4), p2=(0, 2)), offsets_max=9)
    assert plan == RoundPlan({0: (3, 8), 1: (0, 3), 2: (0, 1)}, {0: ((0, 3),)}, {0: 8, 1: 3, 2: 1}, 3)
    shorter = cut(plan, {0: 5, 1: 0})
    assert shorter == RoundPlan({0: (3, 5), 2: (0, 1)}, {0: ((0, 3),)}, {0: 5, 1: 0, 2: 1}, 9)
    assert cut(plan, {}) == cut(plan, {0: 8, 1: 50, 7: 0}) == plan


# -- many rounds -------------------------------------------------------------------------------------------------------


class GrowingLog:
    """A topic that grows and loses its oldest records, and the marks of its table."""

    def __init__(self, partitions: int) -> None:
        self.bounds: dict[int, list[int]] = {partition: [0, 0] for partition in range(partitions)}
        self.marks: dict[str, int] = {}
        self.taken: dict[int, list[Range]] = {}
        self.gone: dict[int, list[Range]] = {}

    def log(self) -> LogState:
        return LogState(
            "flights",
            TOPIC_ID,
            {partition: first for partition, (first, _) in self.bounds.items()},
            {partition: end for partition, (_, end) in self.bounds.items()},
        )

    def state(self) -> ArchiveState:
        return ArchiveState.of(self.marks, TOPIC_ID)

    def change(self, kind: str, partition: int, size: int) -> None:
        """Let a partition grow or retention take its first records, or add one to the topic."""
        place = self.bounds[partition % len(self.bounds)]
        if kind == "grow":
            place[1] += size
        elif kind == "retention":
            place[0] = min(place[0] + size, place[1])
        else:
            self.bounds[len(self.bounds)] = [0, 0]

    def round(self, begin: Mapping[int, int], offsets_max: int, stops: Mapping[int, int] | None = None) -> RoundPlan:
        """A round that is committed; it takes as many of the log's offsets as it may, or stops some of them earlier."""
        before, log = self.state(), self.log()
        plan = plan_round(before, log, begin, on_gap="record", offsets_max=offsets_max)
        # Behind the archive's beginning, a partition that is new to it begins with its log.
        known = {**dict.fromkeys(log.end, 0), **before.ends} if before.ends else begin
        lacks = sum(end - max(log.first[partition], known[partition]) for partition, end in log.end.items())
        assert plan.offsets == min(lacks, offsets_max)
        assert all(end > before.ends.get(partition, -1) for partition, end in plan.ends.items())
        if stops is not None:
            plan = cut(plan, {p: start + stops.get(p, end - start) for p, (start, end) in plan.ranges.items()})
        assert plan.offsets + plan.backlog == lacks
        assert all(end >= before.ends.get(partition, -1) for partition, end in plan.ends.items())
        for partition, (start, end) in plan.ranges.items():
            assert log.first[partition] <= start < end <= log.end[partition]
            self.taken.setdefault(partition, []).append((start, end))
        for partition, parts in plan.gaps.items():
            self.gone.setdefault(partition, []).extend(parts)
        self.marks |= marks_of(TOPIC_ID, plan.ends, plan.gaps)
        return plan

    def require_tiles(self) -> None:
        """Every offset before a partition's end is in one range or in one gap, and the marks have the gaps."""
        state = self.state()
        for partition, end in state.ends.items():
            parts = sorted([*self.taken.get(partition, ()), *self.gone.get(partition, ())])
            assert all(before[1] == after[0] for before, after in itertools.pairwise(parts))
            assert (parts[0][0], parts[-1][1]) == (0, end) if parts else end == 0
        assert state.gaps == joined({partition: tuple(parts) for partition, parts in self.gone.items()})
        assert self.taken.keys() | self.gone.keys() <= state.ends.keys()


CHANGES = st.tuples(
    st.sampled_from(["grow", "grow", "grow", "retention", "retention", "partition"]),
    st.integers(0, 4),
    st.integers(0, 12),
)
STEPS = st.tuples(st.lists(CHANGES, max_size=5), st.integers(1, 15) | st.just(MANY))
STOPS = st.none() | st.dictionaries(st.integers(0, 3), st.integers(0, 6))


@given(st.integers(1, 3), st.sampled_from(["earliest", "latest", "offset"]), st.integers(0, 30), st.data())
def test_each_offset_of_a_growing_log_is_in_one_range_or_in_one_gap(
    partitions: int, start: str, offset: int, data: Any
) -> None:
    topic = GrowingLog(partitions)
    for changes, offsets_max in data.draw(st.lists(STEPS, min_size=1, max_size=12)):
        for change in changes:
            topic.change(*change)
        log = topic.log()
        asked = {"earliest": log.first, "latest": log.end, "offset": dict.fromkeys(log.end, offset)}[start]
        topic.round(
            {p: min(max(each, log.first[p]), log.end[p]) for p, each in asked.items()}, offsets_max, data.draw(STOPS)
        )
        assert topic.state().ends.keys() == log.end.keys()
        topic.require_tiles()
    # Nothing grows any more: rounds reach the end of the log, and the last one has nothing to do.
    for _ in range(MANY):
        if topic.round(topic.log().end, 7).is_empty:
            break
        topic.require_tiles()
    assert topic.state().ends == topic.log().end
    topic.require_tiles()


@given(st.lists(STEPS, min_size=1, max_size=12))
def test_a_round_that_is_not_committed_is_planned_again_as_it_was(steps: list[Any]) -> None:
    topic = GrowingLog(2)
    for changes, offsets_max in steps:
        for change in changes:
            topic.change(*change)
        log, state = topic.log(), topic.state()
        plans = [plan_round(state, log, log.first, on_gap="record", offsets_max=offsets_max) for _ in range(2)]
        assert plans[0] == plans[1]
        topic.round(log.first, offsets_max)


@given(st.lists(STEPS, min_size=1, max_size=12))
def test_without_recording_a_round_fails_or_has_no_gap_behind_the_beginning(steps: list[Any]) -> None:
    topic = GrowingLog(2)
    for changes, offsets_max in steps:
        for change in changes:
            topic.change(*change)
        log, state = topic.log(), topic.state()
        is_gone = any(first > state.ends.get(partition, 0) for partition, first in log.first.items())
        if is_gone and state.ends:
            with pytest.raises(ArchiveError, match="were deleted by retention before they were archived"):
                plan_round(state, log, log.first, on_gap="fail", offsets_max=offsets_max)
        else:
            plan = plan_round(state, log, log.first, on_gap="fail", offsets_max=offsets_max)
            assert plan == plan_round(state, log, log.first, on_gap="record", offsets_max=offsets_max)
            assert not plan.gaps or not state.ends
        topic.round(log.first, offsets_max)
