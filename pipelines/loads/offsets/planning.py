"""Decides a load's offsets, from what was asked for, the topic's log, and what the target has already. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.offsets.positions import Position, PositionKind
from headwater.pipelines.loads.offsets.ranges import Range, Ranges, described, joined, minus, shared, size

__all__ = ["LogState", "TargetState", "Wanted", "decide", "default_id", "gone_of"]

_ID_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class LogState:
    """A topic's log at one moment.

    Attributes:
        first: The first offset of each partition.
        end: The offset after the last committed record of each partition (the last stable offset).
        at: Offsets at times: by time in ms, the first record of each partition at or after it, else the end.
    """

    topic: str
    topic_id: str
    first: Mapping[int, int]
    end: Mapping[int, int]
    at: Mapping[int, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TargetState:
    """What a target has: the offsets of its loads, and where the chain of loads ends."""

    coverage: Ranges = field(default_factory=dict)
    chain_ends: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for.

    Attributes:
        missing: Load what the target lacks, instead of refusing what it has.
        record_gaps: Go on where retention has removed records, and record the gap.
        is_interval: `start` and `end` are times of an interval, whose bounds depend on its neighbours.
    """

    start: Position
    end: Position
    missing: bool = False
    record_gaps: bool = False
    is_interval: bool = False


def decide(
    wanted: Wanted, log: LogState, loaded: TargetState, now_ms: int, bounds: Mapping[int, Range] | None = None
) -> tuple[Ranges, Ranges]:
    """The offsets to load, and the gaps by retention. Raises LoadError if they cannot be loaded as asked.

    `bounds` are those of an interval; None for a load that is none.
    """
    _require_past(wanted.end, now_ms)
    if bounds is not None:
        start = {partition: low for partition, (low, _) in bounds.items()}
        end = {partition: high for partition, (_, high) in bounds.items()}
    else:
        start = _resolved(wanted.start, log, loaded, is_start=True)
        end = _resolved(wanted.end, log, loaded, is_start=False)
    chosen = sorted(start.keys() & end.keys())  # offsets by partition choose partitions, too
    for partition in chosen:
        last = end[partition]
        if last > log.end[partition]:
            raise LoadError(
                f"--until is offset {last} of {log.topic}-{partition}, which ends at {log.end[partition]}: "
                "wait for the records, or ask for less"
            )
        if start[partition] > last and PositionKind.LAST not in (wanted.start.kind, wanted.end.kind):
            raise LoadError(
                f"{log.topic}-{partition} would be loaded from offset {start[partition]} until {last}: "
                "--until lies before --from"
            )
    asked = joined({partition: ((start[partition], end[partition]),) for partition in chosen})
    held = shared(asked, loaded.coverage)
    if held and wanted.start.kind is not PositionKind.LAST and not wanted.missing:
        raise LoadError(
            f"the target has offsets of {log.topic} already ({described(held)}): --missing loads what it lacks, "
            "--replace ID a load anew"
        )
    asked = minus(asked, loaded.coverage)
    gaps = gone_of(asked, log, record=wanted.record_gaps)
    return minus(asked, gaps), gaps


def gone_of(ranges: Ranges, log: LogState, *, record: bool) -> Ranges:
    """The offsets that retention has removed. Raises LoadError if there are some, unless they are to be recorded."""
    gone = shared(ranges, {partition: ((0, first),) for partition, first in log.first.items()})
    if gone and not record:
        raise LoadError(
            f"{size(gone):,} offsets of {log.topic} are gone by retention before they were loaded ({described(gone)}): "
            "--on-gap record goes on after them and records the gap"
        )
    return gone


def default_id(topic: str, covered: Ranges) -> str:
    """The name of a load that was given none: by its topic and its range, so that a repeated command has the same.

    >>> default_id("flights", {0: ((0, 5),)}) == default_id("flights", {0: ((0, 6),)})
    False
    """
    text = f"{topic} {sorted(covered.items())}"
    return f"{topic[:100]}-{hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]}"


def _require_past(end: Position, now_ms: int) -> None:
    if end.kind is PositionKind.TIME and end.time_ms > now_ms:
        raise LoadError(f"--until {end.text} lies in the future: its records are not all there yet")


def _resolved(position: Position, log: LogState, loaded: TargetState, *, is_start: bool) -> dict[int, int]:
    """The position's offset in each partition."""
    option = "--from" if is_start else "--until"
    match position.kind:
        case PositionKind.EARLIEST:
            return dict(log.first)
        case PositionKind.LATEST:
            return dict(log.end)
        case PositionKind.LAST:
            # What the chain has not reached begins with the log: new partitions, and every one of a first load.
            found = {partition: loaded.chain_ends.get(partition, log.first[partition]) for partition in log.end}
            beyond = sorted(partition for partition, offset in found.items() if offset > log.end[partition])
            if beyond:
                raise LoadError(
                    f"the last load of {log.topic}-{beyond[0]} ended at offset {found[beyond[0]]}, and the log ends at "
                    f"{log.end[beyond[0]]}: records were lost, or the log is an older copy; load what is new by offsets"
                )
            return found
        case PositionKind.TIME:
            return dict(log.at[position.time_ms])
        case PositionKind.OFFSETS:
            if position.offset is not None:
                return dict.fromkeys(log.end, position.offset)
            unknown = sorted(position.offsets.keys() - log.end.keys())
            if unknown:
                raise LoadError(
                    f"{option} names partition {unknown[0]}, and {log.topic} has the partitions 0 to {max(log.end)}"
                )
            return dict(position.offsets)
