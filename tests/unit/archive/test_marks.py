"""The marks of a table give back the offsets and gaps that its rounds have left, and only those of its own topic."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.archive.marks import ArchiveState, marks_of
from headwater.pipelines.loads.offsets.ranges import Ranges, joined

TOPIC_ID = "0b5f0d3e-4a4c-4f7e-9b3b-000000000001"
OTHER_ID = "0b5f0d3e-4a4c-4f7e-9b3b-000000000002"
OFFSET_MAX = 2**63 - 1

OFFSETS = st.integers(0, 40) | st.integers(0, OFFSET_MAX)
SPANS = st.tuples(OFFSETS, OFFSETS).map(lambda pair: (min(pair), max(pair)))
PARTITIONS = st.integers(0, 3) | st.integers(0, 99_999)
GAPS = st.dictionaries(PARTITIONS, st.lists(SPANS, max_size=4).map(tuple), max_size=4).map(joined)
ENDS = st.dictionaries(PARTITIONS, OFFSETS, max_size=4)


@given(ENDS, GAPS)
def test_a_state_comes_back_from_its_marks(ends: dict[int, int], gaps: Ranges) -> None:
    assert ArchiveState.of(marks_of(TOPIC_ID, ends, gaps), TOPIC_ID) == ArchiveState(ends, gaps)


@given(st.lists(st.tuples(ENDS, GAPS), max_size=5))
def test_the_marks_of_all_rounds_say_the_last_ends_and_every_gap(rounds: list[tuple[dict[int, int], Ranges]]) -> None:
    """Delta keeps the last version of each appId: a gap that begins where an earlier one did has to reach further."""
    marks: dict[str, int] = {}
    ends: dict[int, int] = {}
    gaps: Ranges = {}
    for new_ends, new_gaps in rounds:
        grown = joined(gaps, new_gaps)
        marks |= marks_of(TOPIC_ID, new_ends, grown)
        ends, gaps = ends | new_ends, grown
    assert ArchiveState.of(marks, TOPIC_ID) == ArchiveState(ends, gaps)


def test_a_table_without_marks_is_at_its_beginning() -> None:
    assert marks_of(TOPIC_ID, {}, {}) == {}
    assert ArchiveState.of({}, TOPIC_ID) == ArchiveState({}, {})


def test_the_marks_are_those_that_tables_have_in_the_field() -> None:
    assert marks_of("t", {1: 7, 0: 9}, {0: ((0, 4), (6, 8)), 2: ((0, 1),)}) == {
        "headwater.archive/t/0": 9,
        "headwater.archive/t/1": 7,
        "headwater.archive/t/0/gap/0": 4,
        "headwater.archive/t/0/gap/6": 8,
        "headwater.archive/t/2/gap/0": 1,
    }


def test_the_order_of_marks_does_not_matter() -> None:
    marks = marks_of(TOPIC_ID, {0: 9, 1: 2}, {0: ((0, 4), (6, 8)), 1: ((1, 2),)})
    assert ArchiveState.of(dict(reversed(marks.items())), TOPIC_ID) == ArchiveState.of(marks, TOPIC_ID)


def test_gaps_that_touch_are_one_gap() -> None:
    """Retention took the next records, too, before any was archived: each round has recorded a gap of its own."""
    marks = {f"headwater.archive/{TOPIC_ID}/0/gap/{first}": after for first, after in ((9, 12), (0, 5), (5, 9))}
    assert ArchiveState.of(marks, TOPIC_ID).gaps == {0: ((0, 12),)}


def test_a_partition_without_a_record_has_begun() -> None:
    assert ArchiveState.of(marks_of(TOPIC_ID, {3: 0}, {}), TOPIC_ID).ends == {3: 0}


@pytest.mark.parametrize("rest", ["0", "0/gap/0", "17"])
def test_marks_of_a_topic_made_again_are_refused(rest: str) -> None:
    marks = marks_of(TOPIC_ID, {0: 5}, {}) | {f"headwater.archive/{OTHER_ID}/{rest}": 5}
    with pytest.raises(ArchiveError, match=re.escape(f"(id {OTHER_ID}; this one's is {TOPIC_ID})")):
        ArchiveState.of(marks, TOPIC_ID)


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "/",
        "/x",
        "/-1",
        "/0/",
        "/0/gap",
        "/0/gap/",
        "/0/gap/x",
        "/0/gap/-1",
        "/0/gap/1/2",
        "/0/hole/1",
        "/0 ",
        "/ 0",
    ],
)
def test_a_malformed_mark_is_refused(rest: str) -> None:
    with pytest.raises(ArchiveError):
        ArchiveState.of({f"headwater.archive/{TOPIC_ID}{rest}": 5}, TOPIC_ID)
