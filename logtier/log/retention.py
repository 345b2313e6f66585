"""Selects the segments that exceed the retention of a log. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headwater.logtier.config import TopicConfig


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """The properties of a segment that retention needs; `end_offset` is the next segment's base offset."""

    end_offset: int
    size_bytes: int
    newest_ms: int
    is_active: bool = False


@dataclass(frozen=True, slots=True)
class RetentionHold:
    """How far the groups in `retention.hold.groups` of a topic have read a partition.

    Attributes:
        offset: First offset that a group has not passed; retention and compaction keep the records from here on.
        bytes_max: Limit of the bytes that are kept only because of the hold (`retention.hold.max.bytes`); -1 sets none.
        reason: Which group holds, for messages.
        is_known: Whether the offset is a group's; otherwise all records are held.
    """

    offset: int
    bytes_max: int = -1
    reason: str = ""
    is_known: bool = True


HOLD_ALL: Final = RetentionHold(0, is_known=False)
"""Holds every record, without a limit; what it keeps is not counted as held."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """What retention does with the oldest segments of a log.

    Attributes:
        count: Number of oldest segments to delete.
        held_bytes: Size of the segments that retention would delete and the hold keeps.
        given_up_bytes: Size of the segments to delete although they are held, because of the hold's limit.
    """

    count: int
    held_bytes: int = 0
    given_up_bytes: int = 0


def give_up(held: Sequence[int], bytes_max: int) -> int:
    """Return how many of the oldest held segments exceed the limit of a hold; `held` has their sizes, oldest first.

    >>> give_up([100, 100, 100], 250), give_up([100, 100, 100], 300), give_up([100], -1)
    (1, 0, 0)
    """
    if bytes_max < 0:
        return 0
    excess_bytes = sum(held) - bytes_max
    count = 0
    while excess_bytes > 0:
        excess_bytes -= held[count]
        count += 1
    return count


def roll_interval_ms(config: TopicConfig) -> int:
    """Return the age at which a segment rolls: segment.ms, with compaction at most max.compaction.lag.ms.

    >>> roll_interval_ms(TopicConfig(cleanup_policy=("compact",), max_compaction_lag_ms=60_000))
    60000
    """
    if "compact" in config.cleanup_policy:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


def segments_to_delete(
    segments: Iterable[SegmentAge],
    *,
    total_bytes: int,
    config: TopicConfig,
    now_ms: int,
    log_start_offset: int,
    high_watermark: int,
    hold: RetentionHold | None = None,
) -> Deletion:
    """Return the oldest segments to delete: by time, by size, or below the log start offset.

    Time and size apply only when `cleanup.policy` includes delete, and only below the high watermark and the hold. Only
    a prefix is deleted, so that the log has no gap; `segments` is consumed up to the first segment that stays without
    the hold. An empty active segment stays. Segments below the log start offset are deleted in spite of the hold:
    DeleteRecords is explicit.

    >>> segments = [SegmentAge(10, 100, 1_000), SegmentAge(20, 100, 1_500), SegmentAge(20, 0, 5_000, is_active=True)]
    >>> segments_to_delete(
    ...     segments,
    ...     total_bytes=200,
    ...     config=TopicConfig(retention_ms=3_000),
    ...     now_ms=5_000,
    ...     log_start_offset=0,
    ...     high_watermark=20,
    ...     hold=RetentionHold(15),
    ... )
    Deletion(count=1, held_bytes=100, given_up_bytes=0)
    """
    # What HOLD_ALL keeps is not even looked at: the times of thousands of segments are read from their files.
    deletes = "delete" in config.cleanup_policy and hold is not HOLD_ALL
    excess_bytes = total_bytes - config.retention_bytes
    count = 0
    held: list[int] = []
    for segment in segments:
        if segment.is_active and segment.size_bytes == 0:
            break
        before_start = segment.end_offset <= log_start_offset and not segment.is_active
        expired = deletes and config.retention_ms >= 0 and now_ms - segment.newest_ms > config.retention_ms
        too_much = deletes and config.retention_bytes >= 0 and excess_bytes >= segment.size_bytes
        if not (before_start or ((expired or too_much) and segment.end_offset <= high_watermark)):
            break
        excess_bytes -= segment.size_bytes
        if hold is None or segment.end_offset <= max(hold.offset, log_start_offset):
            count += 1
        else:
            held.append(segment.size_bytes)
    if hold is None:
        return Deletion(count)
    given_up = give_up(held, hold.bytes_max)
    return Deletion(count + given_up, sum(held[given_up:]), sum(held[:given_up]))
