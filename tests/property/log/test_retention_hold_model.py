"""Holds of groups against their promise: nothing that a group has not passed is deleted or cleaned below the limit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.cleaning.cleaner_policy import Cleanable, SegmentSummary, find_cleanable
from headwater.logtier.log.retention import Deletion, RetentionHold, SegmentAge, segments_to_delete
from tests.example_counts import examples

NOW_MS = 1_000


@dataclass(frozen=True)
class Scene:
    """A log of segments, of which the last is active, and what bounds its retention and compaction."""

    segments: list[SegmentAge]
    log_start_offset: int
    high_watermark: int
    cleaned_to: int | None
    config: TopicConfig
    hold: RetentionHold

    def deletion(self, hold: RetentionHold | None) -> Deletion:
        return segments_to_delete(
            self.segments,
            total_bytes=sum(each.size_bytes for each in self.segments),
            config=self.config,
            now_ms=NOW_MS,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            hold=hold,
        )

    def bases(self) -> list[int]:
        return [0, *(each.end_offset for each in self.segments[:-1])]

    def cleanable(self, hold: RetentionHold | None) -> Cleanable:
        return find_cleanable(
            [
                SegmentSummary(base, each.size_bytes, 1, each.newest_ms)
                for base, each in zip(self.bases(), self.segments, strict=True)
            ],
            cleaned_to=self.cleaned_to,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.segments[-1].end_offset,
            stable_offset=self.high_watermark,
            config=self.config,
            now_ms=NOW_MS,
            hold=hold,
        )


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    ends = sorted(draw(st.sets(st.integers(1, 60), min_size=1, max_size=8)))
    segments = [
        SegmentAge(end, draw(st.integers(1, 100)), draw(st.integers(0, NOW_MS)), is_active=end == ends[-1])
        for end in ends
    ]
    start = draw(st.integers(0, segments[0].end_offset - 1) | st.integers(0, ends[-1]))
    config = TopicConfig(
        cleanup_policy=draw(st.sampled_from([("delete",), ("compact",), ("compact", "delete")])),
        retention_ms=draw(st.sampled_from([-1, 0, 300])),
        retention_bytes=draw(st.sampled_from([-1, 0, 150])),
        min_compaction_lag_ms=draw(st.sampled_from([0, 400])),
    )
    hold = RetentionHold(draw(st.integers(0, 65)), draw(st.sampled_from([-1, -1, 0, 100, 250])))
    watermark = draw(st.integers(start, ends[-1]))
    return Scene(segments, start, watermark, draw(st.none() | st.sampled_from([0, *ends[:-1]])), config, hold)


@settings(max_examples=examples(500))
@given(scenes())
def test_retention_deletes_only_what_is_passed_unless_the_limit_is_exceeded(scene: Scene) -> None:
    free, held = scene.deletion(None), scene.deletion(scene.hold)
    assert held.count <= free.count
    bound = max(scene.hold.offset, scene.log_start_offset)
    gone = scene.segments[: held.count]
    assert sum(each.size_bytes for each in gone if each.end_offset > bound) == held.given_up_bytes
    assert sum(each.size_bytes for each in scene.segments[held.count : free.count]) == held.held_bytes
    if scene.hold.bytes_max < 0:
        assert held.given_up_bytes == 0
    else:
        assert held.held_bytes <= scene.hold.bytes_max
    if held.given_up_bytes:
        # Without the last of these the limit was exceeded.
        assert held.held_bytes + gone[-1].size_bytes > scene.hold.bytes_max


@settings(max_examples=examples(500))
@given(scenes())
def test_a_cleaning_ends_before_what_is_not_passed_unless_the_limit_is_exceeded(scene: Scene) -> None:
    free, held = scene.cleanable(None), scene.cleanable(scene.hold)
    assert held.first_dirty_offset == free.first_dirty_offset
    assert held.end_offset <= free.end_offset
    assert held.cleanable_bytes + held.held_bytes == free.cleanable_bytes
    if held.cleanable_bytes and not held.given_up_bytes:
        assert held.end_offset <= scene.hold.offset
    if scene.hold.bytes_max < 0:
        assert held.given_up_bytes == 0
    else:
        assert held.held_bytes <= scene.hold.bytes_max


@settings(max_examples=examples(300))
@given(scenes(), st.integers(0, 65))
def test_a_group_that_goes_on_never_makes_more_stay(scene: Scene, offset: int) -> None:
    """Also the reverse: an unknown offset, which holds all, deletes and cleans no more than a known one."""
    holds = [RetentionHold(each, scene.hold.bytes_max) for each in sorted((0, offset, scene.hold.offset))]
    for earlier, later in pairwise(holds):
        assert scene.deletion(earlier).count <= scene.deletion(later).count
        assert scene.cleanable(earlier).end_offset <= scene.cleanable(later).end_offset
