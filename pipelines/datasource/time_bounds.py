"""Where a read for rows up to a time ends. Pure.

A partition's timestamps need not ascend. The *disorder* bounds how far they fall back: no record has a timestamp that
is earlier than that of a record before it by more than the disorder. So once a record is later than the bound plus the
disorder, all records after it are later than the bound.

The broker's answer to ListOffsets is a hint only: its first record with a late enough timestamp may be a transaction's
marker, which has the coordinator's time, and the disorder is one of the records. Therefore a read with such a bound
continues from there until it has met a batch of records that is late enough, usually the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from headwater.logtier.records.batch import Buffer, iterate_batches
from headwater.pipelines.datasource.offsets import OffsetRange, Reach

__all__ = ["APPEND_TIME_DISORDER_MS", "LateBatch", "first_later_ms", "reaching"]

#: Disorder of a topic with the brokers' times, if none is stated: the clocks of two leaders differ by less.
APPEND_TIME_DISORDER_MS: Final = 60_000
LONG_MAX: Final = 2**63 - 1


def first_later_ms(high_ms: int, disorder_ms: int) -> int | None:
    """The timestamp for ListOffsets that finds the first record behind rows up to `high_ms`; None if none can be.

    >>> first_later_ms(1_000, 60), first_later_ms(-5, 1), first_later_ms(1_000, 2**63 - 1)
    (1061, 0, None)
    """
    later_ms = high_ms + disorder_ms + 1
    if later_ms > LONG_MAX:
        return None
    return max(later_ms, 0)  # negative timestamps have other meanings


def reaching(part: OffsetRange, hint: int, later_ms: int, *, append_time_only: bool) -> OffsetRange:
    """A range that ends at the hint, and continues as far as necessary.

    >>> reaching(OffsetRange("t", 0, 5, 90), 40, 1061, append_time_only=False)
    OffsetRange(topic='t', partition=0, start=5, end=40, reach=Reach(end=90, later_ms=1061, append_time_only=False))
    >>> reaching(OffsetRange("t", 0, 5, 90), 90, 1061, append_time_only=False)
    OffsetRange(topic='t', partition=0, start=5, end=90, reach=None)
    """
    if hint >= part.end:
        return part
    return replace(part, end=max(part.start, hint), reach=Reach(part.end, later_ms, append_time_only))


@dataclass(slots=True)
class LateBatch:
    """Searches fetched batches for the one that ends the read.

    With `append_time_only`, a batch whose timestamps are its producer's makes the search void: the disorder was that of
    the brokers' clocks, so the read continues to the end.
    """

    reach: Reach
    is_void: bool = False

    def end_within(self, records: Buffer, start_offset: int) -> int | None:
        """The offset behind the first late batch at or after `start_offset`; None if the read continues."""
        if self.is_void:
            return None
        for header, _ in iterate_batches(records):
            if header.last_offset < start_offset or header.is_control:
                continue
            if self.reach.append_time_only and not header.is_log_append_time:
                self.is_void = True
                return None
            if header.max_timestamp_ms >= self.reach.later_ms:
                return header.last_offset + 1
        return None
