"""Chooses the log to compact, the end of the cleaning, and the segments to merge. Pure; Kafka's rules."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from headwater.logtier.config import TopicConfig
from headwater.logtier.config.definition import LONG_MAX
from headwater.logtier.log.retention import RetentionHold, give_up
from headwater.logtier.log.segments.segment import RELATIVE_OFFSET_MAX


class SegmentSummary(NamedTuple):
    """The properties of a segment for the choice; times are 0 unless the topic's configs need them.

    `first_ms` is the greatest timestamp of its first batch, `newest_ms` that of all batches (without timestamps, its
    file's modification time).
    """

    base_offset: int
    size_bytes: int
    first_ms: int = 0
    newest_ms: int = 0


class Cleanable(NamedTuple):
    """The range of a log that a cleaning may cover.

    Everything before `first_dirty_offset` is cleaned; nothing from `end_offset` (a base offset) on may be changed.
    `is_overdue`: a record has waited longer than max.compaction.lag.ms. `held_bytes` could be cleaned without the hold
    of groups; `given_up_bytes` are held and may be cleaned, because of the hold's limit.
    """

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool
    held_bytes: int = 0
    given_up_bytes: int = 0

    @property
    def dirty_ratio(self) -> float:
        """Uncleaned share of the bytes that may be cleaned; 0 for an empty log.

        >>> Cleanable(10, 20, clean_bytes=300, cleanable_bytes=100, is_overdue=False).dirty_ratio
        0.25
        """
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0

    def is_due(self, config: TopicConfig) -> bool:
        """Whether the log is to be cleaned now."""
        return self.cleanable_bytes > 0 and (self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio)


def needs_times(config: TopicConfig) -> bool:
    """Whether the configs need segment times, which requires reading their files."""
    return config.min_compaction_lag_ms > 0 or config.max_compaction_lag_ms < LONG_MAX


def find_cleanable(
    segments: Sequence[SegmentSummary],
    *,
    cleaned_to: int | None,
    log_start_offset: int,
    log_end_offset: int,
    stable_offset: int,
    config: TopicConfig,
    now_ms: int,
    hold: RetentionHold | None = None,
) -> Cleanable:
    """Return the range of a log that may be cleaned; the last of `segments` is the active one.

    The active segment, unstable records (ongoing transactions, unreplicated records), segments with records younger
    than min.compaction.lag.ms, and what the hold keeps are excluded. Nothing is cleaned while the hold begins below
    the last cleaning: a cleaning could remove older versions of a key there, and tombstones.

    Args:
        cleaned_to: Checkpoint of the last cleaning; ignored if it is outside the log (after a truncation or a new
            start).
    """
    first_dirty = log_start_offset if cleaned_to is None else cleaned_to
    if not log_start_offset <= first_dirty <= log_end_offset:
        first_dirty = log_start_offset
    inactive = segments[:-1]
    first = _holding(segments, first_dirty)
    end = min(stable_offset, segments[-1].base_offset)
    if config.min_compaction_lag_ms > 0:
        for segment in inactive[first:]:
            if segment.newest_ms > now_ms - config.min_compaction_lag_ms:
                end = min(end, segment.base_offset)
                break
    # Whole segments only: the one that holds the first offset that may not be touched stays as it is.
    end = segments[_holding(segments, end)].base_offset
    held_bytes = given_up_bytes = 0
    if hold is not None:
        end, held_bytes, given_up_bytes = _before_hold(segments, first, end, hold)
    earliest_ms = min((segment.first_ms for segment in inactive[first:] if segment.first_ms > 0), default=LONG_MAX)
    return Cleanable(
        first_dirty,
        max(end, first_dirty),
        sum(segment.size_bytes for segment in segments if segment.base_offset < first_dirty),
        sum(segment.size_bytes for segment in segments[first:] if segment.base_offset < end),
        earliest_ms < now_ms - config.max_compaction_lag_ms,
        held_bytes,
        given_up_bytes,
    )


def _before_hold(
    segments: Sequence[SegmentSummary], first_dirty: int, end: int, hold: RetentionHold
) -> tuple[int, int, int]:
    """Return the end of what may be cleaned before a hold, the bytes that are held, and those that are given up.

    `first_dirty` is the index of the first segment with uncleaned records, `end` the base offset of the first segment
    that may not be cleaned anyway.
    """
    held_from = segments[_holding(segments, hold.offset)].base_offset
    if held_from >= end:
        return end, 0, 0
    held = [segment for segment in segments[first_dirty:] if held_from <= segment.base_offset < end]
    sizes = [segment.size_bytes for segment in held]
    given_up = give_up(sizes, hold.bytes_max)
    if given_up:
        held_from = held[given_up].base_offset if given_up < len(held) else end
    return held_from, sum(sizes[given_up:]), sum(sizes[:given_up])


def _holding(segments: Sequence[SegmentSummary], offset: int) -> int:
    """Index of the segment that holds the offset; the first one for an offset before all."""
    found = 0
    for i, segment in enumerate(segments):
        if segment.base_offset > offset:
            break
        found = i
    return found


_Name = TypeVar("_Name")


def dirtiest(candidates: Iterable[tuple[_Name, Cleanable, TopicConfig]]) -> tuple[_Name | None, float]:
    """Return the log to clean next, None if none is due, and the highest dirty ratio of all."""
    chosen: _Name | None = None
    chosen_ratio = -1.0
    ratio_max = 0.0
    for name, cleanable, config in candidates:
        ratio = cleanable.dirty_ratio
        ratio_max = max(ratio_max, ratio)
        if ratio > chosen_ratio and cleanable.is_due(config):
            chosen, chosen_ratio = name, ratio
    return chosen, ratio_max


class SourceSegment(NamedTuple):
    """A segment to be cleaned: base offset, sizes of its files, time of its last write."""

    base_offset: int
    size_bytes: int
    index_bytes: int
    modified_ms: int


def given_up_before(
    sources: Sequence[SourceSegment], cleanable: Cleanable, hold: RetentionHold, cleaned_to: int
) -> int:
    """Return the bytes of held segments that a cleaning has covered, which may end before `cleanable.end_offset`.

    A segment that is covered in part counts with the cleaning that ends it, so that each counts once.

    >>> sources = [SourceSegment(0, 60, 8, 1), SourceSegment(10, 40, 8, 2), SourceSegment(20, 30, 8, 3)]
    >>> cleanable = Cleanable(0, 30, clean_bytes=0, cleanable_bytes=130, is_overdue=False, given_up_bytes=70)
    >>> [given_up_before(sources, cleanable, RetentionHold(10, 0), cleaned_to) for cleaned_to in (15, 20, 25, 30)]
    [0, 40, 40, 70]
    """
    ends = [*(source.base_offset for source in sources[1:]), cleanable.end_offset]
    held_from = max(hold.offset, cleanable.first_dirty_offset)
    return sum(source.size_bytes for source, end in zip(sources, ends, strict=True) if held_from < end <= cleaned_to)


def group_segments(
    segments: Sequence[SourceSegment], *, segment_bytes: int, index_bytes: int, end_offset: int
) -> list[list[SourceSegment]]:
    """Group adjacent segments that fit into one, so that cleaning does not leave ever smaller segments.

    `end_offset` is the base offset of the first segment after them.

    >>> sources = [SourceSegment(0, 60, 8, 1), SourceSegment(10, 40, 8, 2), SourceSegment(20, 40, 8, 3)]
    >>> groups = group_segments(sources, segment_bytes=100, index_bytes=1000, end_offset=30)
    >>> [[source.base_offset for source in group] for group in groups]
    [[0, 10], [20]]
    """
    groups: list[list[SourceSegment]] = []
    size = index_size = 0
    for i, segment in enumerate(segments):
        next_offset = segments[i + 1].base_offset if i + 1 < len(segments) else end_offset
        if (
            groups
            and size + segment.size_bytes <= segment_bytes
            and index_size + segment.index_bytes <= index_bytes
            and (segment.size_bytes == 0 or next_offset - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX)
        ):
            groups[-1].append(segment)
            size += segment.size_bytes
            index_size += segment.index_bytes
        else:
            groups.append([segment])
            size, index_size = segment.size_bytes, segment.index_bytes
    return groups
