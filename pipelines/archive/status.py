"""How far archives are, and what their next rounds would add: read without Spark."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed, naming_table
from headwater.pipelines.archive.marks import ArchiveState
from headwater.pipelines.archive.round_plan import plan_round
from headwater.pipelines.archive.table_modes import mode_of_new_table
from headwater.pipelines.archive.table_properties import refused_properties
from headwater.pipelines.archive.topic_archive import begin_offsets, topic_log
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.seam.table_offsets import SeamError, TableOffsets, table_offsets

__all__ = ["ArchiveStatus", "refused_status", "status_of"]

_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """One archive beside its topic.

    Attributes:
        version: The table's version; -1 without a table.
        mode: How records become rows of the table; '' without one.
        archived: The next offset of each partition in the table.
        log_start, log_end: Those of the topic.
        to_add: Offsets that the table lacks.
        lost: Offsets that it cannot get any more: retention has deleted them.
        committed_s: Seconds since the table's last commit; None without a table.
        problem: Why the archive cannot go on; '' if it can.
        declared: What declares the archive, for people.
    """

    topic: str
    table: str
    version: int = -1
    mode: str = ""
    archived: dict[int, int] = field(default_factory=dict)
    log_start: dict[int, int] = field(default_factory=dict)
    log_end: dict[int, int] = field(default_factory=dict)
    to_add: int = 0
    lost: int = 0
    committed_s: float | None = None
    problem: str = ""
    declared: str = "the file"

    def value(self) -> dict[str, Any]:
        """The status as JSON values."""
        return {
            "topic": self.topic,
            "table": self.table,
            "version": self.version,
            "mode": self.mode,
            "partitions": [
                {
                    "partition": partition,
                    "archived": self.archived.get(partition),
                    "log_start": self.log_start[partition],
                    "log_end": end,
                }
                for partition, end in sorted(self.log_end.items())
            ],
            "to_add": self.to_add,
            "lost": self.lost,
            "committed_seconds_ago": None if self.committed_s is None else round(self.committed_s, 1),
            "problem": self.problem,
            "declared": self.declared,
        }


def refused_status(topic: str, reason: str) -> ArchiveStatus:
    """Of a topic whose configs enable an archive that cannot be."""
    return ArchiveStatus(topic, "", problem=reason, declared="the topic's configs")


def status_of(
    spec: TopicArchiveSpec, brokers: Brokers, clock: Callable[[], float] = time.time, *, overrules: bool = False
) -> ArchiveStatus:
    """The status of an archive; what keeps it from going on is its `problem`.

    `overrules`: the topic's configs enable an archive as well, and the file wins.
    """
    declared = f"the topic's configs ({spec.configs})" if spec.configs else "the file"
    if overrules:
        declared = "the file, which wins over the topic's configs headwater.archive.*"
    found = _found(spec, brokers, clock)
    problem = found.problem and naming_table(found.problem, spec.table)
    return dataclasses.replace(found, problem=problem, declared=declared)


def _found(spec: TopicArchiveSpec, brokers: Brokers, clock: Callable[[], float]) -> ArchiveStatus:
    try:
        log = topic_log(brokers, spec)
    except (ArchiveError, ArchiveFailed) as error:
        return ArchiveStatus(spec.topic, spec.table, problem=str(error))
    try:
        table = table_offsets(spec.table)
    except SeamError as error:
        return ArchiveStatus(
            spec.topic, spec.table, log_start=dict(log.first), log_end=dict(log.end), problem=str(error)
        )
    found = _compared(spec, log, table, clock())
    if table is None and not found.problem:
        try:
            mode_of_new_table(spec, brokers)  # without it, no round makes the table
        except (ArchiveError, ArchiveFailed) as error:
            return dataclasses.replace(found, problem=str(error))
    return found


def _compared(spec: TopicArchiveSpec, log: LogState, table: TableOffsets | None, now_s: float) -> ArchiveStatus:
    archived = {} if table is None else table.ends
    problem, to_add = "", 0
    if table is not None:
        problem = refused_properties(spec.table, table.properties, spec.topic, log.topic_id, spec.mode)
    if table is None or table.topic_id == log.topic_id:
        try:
            plan = plan_round(
                ArchiveState(archived),
                log,
                begin_offsets(spec, log, is_new=not archived),
                on_gap=spec.on_gap,
                offsets_max=_ALL,
            )
            to_add = plan.offsets
        except (ArchiveError, ArchiveFailed) as error:
            problem = problem or str(error)
    return ArchiveStatus(
        spec.topic,
        spec.table,
        -1 if table is None else table.version,
        "" if table is None else table.mode,
        dict(archived),
        dict(log.first),
        dict(log.end),
        to_add,
        sum(max(log.first[p] - end, 0) for p, end in archived.items() if p in log.first),
        None if table is None else max(now_s - table.committed_ms / 1000, 0.0),
        problem,
    )
