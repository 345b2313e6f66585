"""Selects the segments that exceed the retention of a log. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from headwater.logtier.config import TopicConfig


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """The properties of a segment that retention needs; `end_offset` is the next segment's base offset."""

    end_offset: int
    size_bytes: int
    newest_ms: int
    is_active: bool = False


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
) -> int:
    """Return the number of oldest segments to delete: by time, by size, or below the log start offset.

    Time and size apply only when `cleanup.policy` includes delete, and only below the high watermark. Only a prefix is
    deleted, so that the log has no gap; `segments` is consumed up to the first segment that stays. An empty active
    segment stays.

    >>> segments = [SegmentAge(10, 100, 1_000), SegmentAge(20, 100, 5_000), SegmentAge(20, 0, 5_000, is_active=True)]
    >>> segments_to_delete(
    ...     segments,
    ...     total_bytes=200,
    ...     config=TopicConfig(retention_ms=3_000),
    ...     now_ms=5_000,
    ...     log_start_offset=0,
    ...     high_watermark=20,
    ... )
    1
    """
    deletes = "delete" in config.cleanup_policy
    excess_bytes = total_bytes - config.retention_bytes
    count = 0
    for segment in segments:
        if segment.is_active and segment.size_bytes == 0:
            break
        before_start = segment.end_offset <= log_start_offset and not segment.is_active
        expired = deletes and config.retention_ms >= 0 and now_ms - segment.newest_ms > config.retention_ms
        too_much = deletes and config.retention_bytes >= 0 and excess_bytes >= segment.size_bytes
        if not (before_start or ((expired or too_much) and segment.end_offset <= high_watermark)):
            break
        excess_bytes -= segment.size_bytes
        count += 1
    return count
