"""Which log is cleaned, and how far."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.cleaning.cleaner_policy import (
    Cleanable,
    SegmentSummary,
    SourceSegment,
    dirtiest,
    find_cleanable,
    group_segments,
)
from headwater.logtier.log.retention import RetentionHold

SEGMENTS = [
    SegmentSummary(0, 100, 1, 1_000),
    SegmentSummary(10, 100, 1_500, 2_000),
    SegmentSummary(20, 50, 2_500, 3_000),
]


def cleanable(config: TopicConfig | None = None, **changes: Any) -> Cleanable:
    arguments: dict[str, Any] = {
        "cleaned_to": None,
        "log_start_offset": 0,
        "log_end_offset": 25,
        "stable_offset": 25,
        "config": config or TopicConfig(),
        "now_ms": 3_000,
    }
    return find_cleanable(SEGMENTS, **(arguments | changes))


def test_everything_but_the_active_segment_may_be_cleaned() -> None:
    assert cleanable() == Cleanable(0, 20, 0, 200, False)


def test_the_segment_of_the_first_unstable_offset_stays_whole() -> None:
    assert cleanable(stable_offset=15).end_offset == 10
    assert cleanable(stable_offset=10).end_offset == 10
    assert cleanable(stable_offset=3) == Cleanable(0, 0, 0, 0, False)


def test_what_was_cleaned_before_counts_as_clean() -> None:
    found = cleanable(cleaned_to=10)
    assert (found.clean_bytes, found.cleanable_bytes, found.dirty_ratio) == (100, 100, 0.5)
    assert cleanable(cleaned_to=20).cleanable_bytes == 0


@pytest.mark.parametrize(
    ("hold", "end", "held_bytes", "given_up_bytes"),
    [
        (RetentionHold(25), 20, 0, 0),
        (RetentionHold(20), 20, 0, 0),
        (RetentionHold(19), 10, 100, 0),
        (RetentionHold(10), 10, 100, 0),
        (RetentionHold(9), 0, 200, 0),
        (RetentionHold(0, 200), 0, 200, 0),
        (RetentionHold(0, 199), 10, 100, 100),
        (RetentionHold(0, 0), 20, 0, 200),
    ],
)
def test_the_segment_of_the_first_held_record_stays_whole_up_to_the_limit_of_the_hold(
    hold: RetentionHold, end: int, held_bytes: int, given_up_bytes: int
) -> None:
    found = cleanable(hold=hold)
    assert (found.end_offset, found.held_bytes, found.given_up_bytes) == (end, held_bytes, given_up_bytes)
    assert found.cleanable_bytes == 200 - held_bytes


def test_a_hold_does_not_extend_what_may_be_cleaned() -> None:
    assert cleanable(hold=RetentionHold(25), stable_offset=15).end_offset == 10
    assert cleanable(TopicConfig(min_compaction_lag_ms=1_001), hold=RetentionHold(0, 0)).end_offset == 10


def test_nothing_is_cleaned_while_a_hold_begins_below_the_last_cleaning() -> None:
    overdue = TopicConfig(max_compaction_lag_ms=1, min_cleanable_dirty_ratio=0.0)
    found = cleanable(overdue, cleaned_to=10, hold=RetentionHold(3))
    assert (found.cleanable_bytes, found.held_bytes, found.is_due(overdue)) == (0, 100, False)
    assert cleanable(overdue, cleaned_to=10, hold=RetentionHold(3, 99)).is_due(overdue)


@pytest.mark.parametrize("cleaned_to", [26, 4])
def test_a_checkpoint_that_the_log_does_not_reach_is_not_believed(cleaned_to: int) -> None:
    assert cleanable(cleaned_to=cleaned_to, log_start_offset=5).first_dirty_offset == 5


def test_young_records_wait_for_min_compaction_lag_ms() -> None:
    assert cleanable(TopicConfig(min_compaction_lag_ms=1_001)).end_offset == 10
    assert cleanable(TopicConfig(min_compaction_lag_ms=1_000)).end_offset == 20
    assert cleanable(TopicConfig(min_compaction_lag_ms=5_000)).cleanable_bytes == 0


def test_old_records_do_not_wait_for_the_dirty_ratio() -> None:
    config = TopicConfig(max_compaction_lag_ms=1_000, min_cleanable_dirty_ratio=0.9)
    assert cleanable(config, cleaned_to=10).is_due(config)
    assert not cleanable(config, cleaned_to=10, now_ms=2_400).is_due(config)
    assert not cleanable(config, cleaned_to=20).is_due(config), "there is nothing to clean"


def test_the_dirtiest_log_that_is_due_comes_first() -> None:
    config = TopicConfig(min_cleanable_dirty_ratio=0.5)
    late = Cleanable(0, 1, 90, 10, True)
    half = Cleanable(0, 1, 50, 50, False)
    more = Cleanable(0, 1, 40, 60, False)
    assert dirtiest([("late", late, config), ("half", half, config), ("more", more, config)]) == ("more", 0.6)
    assert dirtiest([("late", late, config), ("half", half, config)]) == ("late", 0.5)
    assert dirtiest([("half", half, config)]) == (None, 0.5)
    assert dirtiest([]) == (None, 0.0)


def test_a_group_does_not_span_more_offsets_than_an_index_can_say() -> None:
    far = 2**31
    sources = [SourceSegment(0, 10, 8, 1), SourceSegment(5, 10, 8, 1), SourceSegment(far, 10, 8, 1)]
    groups = group_segments(sources, segment_bytes=1_000, index_bytes=1_000, end_offset=far + 5)
    assert [[source.base_offset for source in group] for group in groups] == [[0, 5], [far]]


def test_an_empty_segment_goes_with_its_neighbour_however_far() -> None:
    sources = [SourceSegment(0, 10, 8, 1), SourceSegment(5, 0, 0, 1)]
    assert len(group_segments(sources, segment_bytes=10, index_bytes=8, end_offset=2**33)) == 1
