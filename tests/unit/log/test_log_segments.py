"""The ordered segments of a log: what is found where, and what a change leaves."""

from pathlib import Path

import pytest

from headwater.logtier.log.segments.log_segments import LogSegments
from headwater.logtier.log.segments.segment import LogSegment
from headwater.logtier.runtime.disk import RealDisk


def segment(base_offset: int, size: int = 10) -> LogSegment:
    return LogSegment(RealDisk(), str(Path("nowhere")), base_offset, size=size, modified_ms=0, index_interval_bytes=100)


def bases(segments: LogSegments) -> list[int]:
    assert list(segments.base_offsets) == [each.base_offset for each in segments]
    assert segments.active is segments[-1]
    return list(segments.base_offsets)


@pytest.fixture
def segments() -> LogSegments:
    return LogSegments(segment(base) for base in (10, 20, 30))


def test_an_offset_is_in_the_last_segment_that_begins_at_or_before_it(segments: LogSegments) -> None:
    assert [segments.index_of(offset) for offset in (9, 10, 19, 20, 30, 99)] == [0, 0, 0, 1, 2, 2]
    assert [segments.base_after(offset) for offset in (9, 10, 29, 30)] == [10, 20, 30, None]
    assert [segments.end_offset(i, 35) for i in range(3)] == [20, 30, 35]
    held = [segments.holding(offset, 35) for offset in (9, 10, 29, 30)]
    assert [(each.base_offset, end) for each, end in held] == [(10, 20), (10, 20), (20, 30), (30, 35)]
    assert segments.from_offset(25) == segments[1:]
    assert segments.size_bytes == 30


def test_segments_come_go_and_are_replaced(segments: LogSegments) -> None:
    before = segments[:]
    segments.append(segment(40))
    assert bases(segments) == [10, 20, 30, 40]
    cleaned = segment(20)
    segments.replace(segments[1:3], cleaned)
    assert bases(segments) == [10, 20, 40]
    assert segments[1] is cleaned
    assert segments.remove_oldest(1) == before[:1]
    assert [each.base_offset for each in before] == [10, 20, 30], "a slice stays what it was"


def test_what_would_break_the_order_is_refused(segments: LogSegments) -> None:
    for change in (
        lambda: segments.append(segment(30)),
        lambda: segments.remove_oldest(3),
        lambda: segments.replace(segments[1:], segment(20)),
        lambda: segments.replace([segments[0], segments[0]], segment(10)),
        lambda: LogSegments([]),
    ):
        with pytest.raises(AssertionError):
            change()
    assert bases(segments) == [10, 20, 30]
