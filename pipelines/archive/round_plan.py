"""Decides the offsets of a round, from the table's offsets and the topic's log. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.archive.marks import ArchiveState
from headwater.pipelines.datasource.offsets import limit_by_backlog
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.ranges import Range, Ranges

__all__ = ["OnGap", "RoundPlan", "cut", "not_in_log", "plan_round"]

OnGap: TypeAlias = Literal["fail", "record"]


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round adds to a table.

    Attributes:
        ranges: Offsets to read, one range a partition.
        gaps: Offsets that cannot be read, or that the archive does not begin with.
        ends: The next offsets after the round, of the partitions that it moves.
        backlog: Offsets that later rounds have to read.
    """

    ranges: Mapping[int, Range] = field(default_factory=dict)
    gaps: Ranges = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    backlog: int = 0

    @property
    def offsets(self) -> int:
        """The number of offsets to read."""
        return sum(end - start for start, end in self.ranges.values())

    @property
    def is_empty(self) -> bool:
        """Whether the table is as far as the log."""
        return not self.ends


def plan_round(
    state: ArchiveState, log: LogState, begin: Mapping[int, int], *, on_gap: OnGap, offsets_max: int
) -> RoundPlan:
    """The next round of an archive, of at most `offsets_max` offsets, shared by the partitions by their backlog.

    `begin` has the offsets at which a new archive begins. A partition that the topic got later begins with its log.

    Raises ArchiveError for a gap that must not be recorded, and for partitions that the topic lacks; ArchiveFailed for
    offsets beyond the log's end, which a new leader may know only a moment later.

    >>> log = LogState("flights", "t", first={0: 3, 1: 0}, end={0: 9, 1: 4})
    >>> plan_round(ArchiveState(), log, {0: 3, 1: 0}, on_gap="fail", offsets_max=5)
    RoundPlan(ranges={0: (3, 6), 1: (0, 2)}, gaps={0: ((0, 3),)}, ends={0: 6, 1: 2}, backlog=5)
    """
    missing = sorted(state.ends.keys() - log.end.keys())
    if missing:
        raise ArchiveError(_missing(log.topic, missing[0]))
    start: dict[int, int] = {}
    gaps: dict[int, tuple[Range, ...]] = {}
    for partition, end in sorted(log.end.items()):
        first, known = log.first[partition], state.ends.get(partition)
        if known is None:
            # Whatever a new partition has had was written since the archive began.
            if state.ends and first > 0 and on_gap == "fail":
                raise _lost(log.topic, partition, 0, first)
            start[partition] = max(first if state.ends else begin[partition], first)
            if start[partition]:
                gaps[partition] = ((0, start[partition]),)
        elif known > end:
            raise ArchiveFailed(_beyond(log.topic, partition, known, end))
        elif known < first:
            if on_gap == "fail":
                raise _lost(log.topic, partition, known, first)
            start[partition] = first
            gaps[partition] = ((known, first),)
        else:
            start[partition] = known
    wanted = limit_by_backlog(
        {(log.topic, partition): offset for partition, offset in start.items()},
        {(log.topic, partition): max(log.end[partition], offset) for partition, offset in start.items()},
        offsets_max,
    )
    ends = {partition: offset for (_, partition), offset in wanted.items()}
    ranges = {partition: (start[partition], end) for partition, end in ends.items() if end > start[partition]}
    moved = {partition: end for partition, end in ends.items() if end != state.ends.get(partition)}
    # A partition without an offset yet is begun, too: readers must know where it begins.
    backlog = sum(max(log.end[partition] - end, 0) for partition, end in ends.items())
    return RoundPlan(ranges, gaps, moved, backlog)


def not_in_log(ends: Mapping[int, int], log: LogState) -> list[str]:
    """A line for each partition whose offset in the table the log does not have: what `plan_round` refuses.

    >>> log = LogState("flights", "t", first={0: 3, 1: 0}, end={0: 9, 1: 4})
    >>> [line.partition(":")[0] for line in not_in_log({0: 9, 1: 7}, log)]
    ['the table is at offset 7 of flights-1, which ends at 4']
    """
    return [
        _missing(log.topic, partition) if partition not in log.end else _beyond(log.topic, partition, known, end)
        for partition, known in sorted(ends.items())
        if known > (end := log.end.get(partition, -1))
    ]


def _missing(topic: str, partition: int) -> str:
    return f"the table has partition {partition} of {topic}, which the topic has no more: it needs another table"


def _beyond(topic: str, partition: int, known: int, end: int) -> str:
    return (
        f"the table is at offset {known} of {topic}-{partition}, which ends at {end}: its leader does not know its end "
        "yet, or records that the table has were lost in the log (an unclean election); if it stays so, name another "
        "table"
    )


def _lost(topic: str, partition: int, first: int, after: int) -> ArchiveError:
    return ArchiveError(
        f"the offsets {first} to {after - 1} of {topic}-{partition} were deleted by retention before they were "
        "archived; on_gap: record continues behind them and records the gap in the table"
    )


def cut(plan: RoundPlan, limits: Mapping[int, int]) -> RoundPlan:
    """A plan that ends before some offsets, by partition.

    >>> plan = RoundPlan({0: (3, 9), 1: (0, 4)}, {0: ((0, 3),)}, {0: 9, 1: 4}, backlog=5)
    >>> cut(plan, {0: 7, 1: 0})
    RoundPlan(ranges={0: (3, 7)}, gaps={0: ((0, 3),)}, ends={0: 7, 1: 0}, backlog=11)
    """
    ends = {partition: min(end, limits.get(partition, end)) for partition, end in plan.ends.items()}
    ranges = {p: (start, ends[p]) for p, (start, _) in plan.ranges.items() if ends[p] > start}
    left = sum(plan.ends[partition] - end for partition, end in ends.items())
    return RoundPlan(ranges, plan.gaps, ends, plan.backlog + left)
