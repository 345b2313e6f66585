"""Decides what a statement reads of an archived topic: a version of its table, and the offsets behind it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.errors import ArchiveError, other_topic
from headwater.pipelines.archive.marks import ArchiveState
from headwater.pipelines.archive.round_plan import plan_round
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.ranges import Range
from headwater.pipelines.seam.marks import APPEND, UPSERT
from headwater.pipelines.seam.table_offsets import TableOffsets

__all__ = ["UnifiedOffsets", "decide"]

_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class UnifiedOffsets:
    """The state of a topic that one statement reads, however often it scans it.

    Invariant: a committed record before the ends is in the table at `version`, or in `tail`, and never in both.

    Attributes:
        version: The table's version; -1 if the archive has none yet.
        tail: The log's offsets that the table lacks, from the first to before the second, by partition; none is empty.
        mode: How records become rows of the table; without one, of the table that the first round will make.
        starts: Where the log continues, of all its partitions.
    """

    topic: str
    topic_id: str
    table: str
    version: int
    tail: Mapping[int, Range] = field(default_factory=dict)
    mode: str = APPEND
    starts: Mapping[int, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The state as lines of EXPLAIN.

        >>> UnifiedOffsets("flights", "t", "/lake/flights", 12, {0: (40, 99)}).lines()
        ['flights: version 12 of /lake/flights', 'flights-0: offsets 40 to 98 (59) behind the table']
        """
        what = f"version {self.version} of {self.table}" if self.version >= 0 else f"no table at {self.table} yet"
        return [f"{self.topic}: {what}"] + [
            f"{self.topic}-{partition}: offsets {start} to {end - 1} ({end - start}) behind the table"
            for partition, (start, end) in sorted(self.tail.items())
        ]


def decide(spec: TopicArchiveSpec, table: TableOffsets | None, log: LogState, new_mode: str = APPEND) -> UnifiedOffsets:
    """The state by the table's offsets, and by the log as it is a moment later.

    The log begins where the archive's next round does, so that both agree on gaps. Until the archive's first commit,
    the log is read from its first offset, and `new_mode` says how its records will become rows.

    Raises ArchiveError for a table of another topic or of another mode, and for a gap that the archive does not record;
    ArchiveFailed for a table that is beyond the log's end.

    >>> from headwater.pipelines.loads.offsets.positions import parse_position
    >>> spec = TopicArchiveSpec("flights", "/lake/flights", parse_position("earliest"))
    >>> log = LogState("flights", "t", first={0: 30, 1: 0}, end={0: 99, 1: 7})
    >>> decide(spec, TableOffsets(12, "flights", "t", 0, {0: 40, 1: 7}), log).tail
    {0: (40, 99)}
    """
    if table is None:
        tail = {p: (first, log.end[p]) for p, first in sorted(log.first.items()) if first < log.end[p]}
        return UnifiedOffsets(log.topic, log.topic_id, spec.table, -1, tail, new_mode, dict(log.first))
    if table.topic_id != log.topic_id:
        raise ArchiveError(other_topic(spec.table, table.topic, table.topic_id, spec.topic, log.topic_id))
    if table.mode not in (APPEND, UPSERT):
        raise ArchiveError(
            f"the table {spec.table} is an archive of the mode {table.mode}, which cannot be read together with the log"
        )
    plan = plan_round(ArchiveState(table.ends), log, log.first, on_gap=spec.on_gap, offsets_max=_ALL)
    starts = {p: plan.ranges[p][0] if p in plan.ranges else end for p, end in log.end.items()}
    return UnifiedOffsets(
        log.topic, log.topic_id, spec.table, table.version, dict(sorted(plan.ranges.items())), table.mode, starts
    )
