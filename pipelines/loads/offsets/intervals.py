"""Intervals of time, such as hours, that are loaded one after the other without a gap between them. Pure.

Timestamps of records are not in the order of their offsets, so that the first record of an hour and the last one of the
hour before overlap. An interval's load therefore starts where the load of the interval before it ended, whatever the
clock of a producer says, and ends where the next one starts, if that was planned first. A load of an interval is named
by the interval: its neighbours are found among the names of plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.positions import Position, PositionKind, parse_position
from headwater.pipelines.loads.offsets.ranges import Range

__all__ = ["bounds_of", "interval_id", "neighbours", "parse_interval"]

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_ID: Final = re.compile(r"(\d{8}T\d{6})(?:\.(\d{3}))?Z_(\d{8}T\d{6})(?:\.(\d{3}))?Z")


def parse_interval(text: str) -> tuple[Position, Position]:
    """Parse `START/END`, two times. Raises ValueError.

    >>> start, end = parse_interval("2013-01-01T05:00:00Z/2013-01-01T06:00:00Z")
    >>> end.time_ms - start.time_ms
    3600000
    >>> parse_interval("2013-01-01T06:00:00Z/2013-01-01T06:00:00Z")
    Traceback (most recent call last):
    ValueError: '2013-01-01T06:00:00Z/2013-01-01T06:00:00Z' is empty: its end must be later than its start
    """
    first, separator, second = text.partition("/")
    if not separator:
        raise ValueError(f"{text[:80]!r} is no interval: give START/END, as 2013-01-01T05:00:00Z/2013-01-01T06:00:00Z")
    start, end = parse_position(first), parse_position(second)
    for each in (start, end):
        if each.kind is not PositionKind.TIME:
            raise ValueError(f"{text[:80]!r} is no interval: {each.text[:60]!r} is no time")
    if start.time_ms >= end.time_ms:
        raise ValueError(f"{text[:80]!r} is empty: its end must be later than its start")
    return start, end


def interval_id(start_ms: int, end_ms: int) -> str:
    """The name of an interval's load.

    >>> interval_id(1357016400000, 1357020000500)
    '20130101T050000Z_20130101T060000.500Z'
    """
    return f"{_text(start_ms)}_{_text(end_ms)}"


def neighbours(names: Iterable[str], start_ms: int, end_ms: int) -> tuple[list[str], list[str]]:
    """Of the names of loads: the intervals that end where this one starts, and those that start where it ends.

    >>> neighbours(
    ...     ["20130101T050000Z_20130101T060000Z", "by-hand", "20130101T070000Z_20130101T080000Z"],
    ...     1357020000000,
    ...     1357023600000,
    ... )
    (['20130101T050000Z_20130101T060000Z'], ['20130101T070000Z_20130101T080000Z'])
    """
    before, after = [], []
    for name in names:
        times = _times(name)
        if times is not None and times[1] == start_ms:
            before.append(name)
        if times is not None and times[0] == end_ms:
            after.append(name)
    return before, after


def bounds_of(
    log: LogState,
    start_ms: int,
    end_ms: int,
    before: Sequence[Mapping[int, Range]],
    after: Sequence[Mapping[int, Range]],
) -> dict[int, Range]:
    """Where an interval's load starts and ends in each partition.

    `before` and `after` are the bounds of the neighbours' loads. Of several, the widest counts: what it has is not
    loaded again. A partition that the interval before did not know is newer than it, and belongs to this one from its
    first record.
    """
    found = {}
    for partition in log.end:
        ends = [bounds[partition][1] for bounds in before if partition in bounds]
        starts = [bounds[partition][0] for bounds in after if partition in bounds]
        alone = log.first[partition] if before else log.at[start_ms][partition]
        start = max(ends) if ends else alone
        end = min(starts) if starts else log.at[end_ms][partition]
        found[partition] = (start, max(start, end))
    return found


def _text(time_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    fraction = f".{time_ms % 1000:03d}" if time_ms % 1000 else ""
    return f"{moment:%Y%m%dT%H%M%S}{fraction}Z"


def _times(name: str) -> tuple[int, int] | None:
    """The interval that a load's name says; None for another name."""
    found = _ID.fullmatch(name)
    if found is None:
        return None
    try:
        return _ms(found[1], found[2]), _ms(found[3], found[4])
    except ValueError:
        return None


def _ms(text: str, fraction: str | None) -> int:
    moment = datetime.strptime(text, "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1) + int(fraction or 0)
