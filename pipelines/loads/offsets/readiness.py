"""Whether topics have passed a time, so that an interval that ends there can be loaded. Pure.

A partition has passed a time when it has a committed record of that time or later. A partition without such a record
passes by the clock, if it is idle: two looks at its end, some seconds apart, find no new record between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PartitionEnds", "Unready", "unready"]


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """One look at a partition.

    Attributes:
        has_passed: Whether it has a committed record of the time or later.
        stable_end: The offset after its last committed record (the last stable offset).
        end: The offset after its last record.
    """

    topic: str
    partition: int
    has_passed: bool
    stable_end: int
    end: int


@dataclass(frozen=True, slots=True)
class Unready:
    """A partition that has not passed, and why."""

    topic: str
    partition: int
    reason: str

    def __str__(self) -> str:
        """The partition in a message."""
        return f"{self.topic}-{self.partition} {self.reason}"


def unready(first: Sequence[PartitionEnds], later: Sequence[PartitionEnds] = ()) -> list[Unready]:
    """The partitions that have not passed.

    Args:
        first: The first look.
        later: The second look, which is for idle partitions; empty before the clock is past the time.

    >>> waiting = PartitionEnds("t", 0, False, 5, 5)
    >>> [str(each) for each in unready([waiting])]
    ['t-0 has no record that late']
    >>> unready([waiting], [waiting])
    []
    """
    seen = {(each.topic, each.partition): each for each in later}
    found = []
    for before in first:
        after = seen.get((before.topic, before.partition))
        reason = _reason(before, after)
        if reason:
            found.append(Unready(before.topic, before.partition, reason))
    return found


def _reason(before: PartitionEnds, after: PartitionEnds | None) -> str:
    if before.has_passed or (after is not None and after.has_passed):
        return ""
    if after is None:
        return "has no record that late"
    if after.stable_end < after.end:
        return f"has an open transaction at offset {after.stable_end}"
    return "has new records, none that late" if after.end != before.end else ""
