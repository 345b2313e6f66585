"""The start of `headwater consume -o`: start, end, an offset, a number of messages before the end, a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headwater.pipelines.timestamps import timestamp_ms


class StartKind(Enum):
    """Kind of a start position."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    BEFORE_END = "before end"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class StartOffset:
    """`number` is the offset, the messages before the end, or the milliseconds since 1970; otherwise 0."""

    kind: StartKind
    number: int = 0


def parse_start(text: str) -> StartOffset:
    """Parse `start`, `end`, `47`, `-3`, `@1700000000000` or `@2026-11-21T08:00:00Z`.

    A time without an offset is UTC.

    >>> parse_start("-3")
    StartOffset(kind=<StartKind.BEFORE_END: 'before end'>, number=3)
    >>> parse_start("@2013-01-01T05:00:00Z").number
    1357016400000
    >>> parse_start("soon")
    Traceback (most recent call last):
        ...
    ValueError: 'soon' is not a position: use start, end, 47 (offset), -3 (before the end) or @2026-11-21T08:00:00Z
    >>> parse_start("@0001-01-01")
    Traceback (most recent call last):
        ...
    ValueError: '@0001-01-01' is before 1970, where the timestamps of records begin
    """
    if text in ("start", "end"):
        return StartOffset(StartKind(text))
    if text.startswith("@"):
        number = _timestamp_ms(text[1:])
        if number is not None:
            if number < 0:
                # To brokers, negative timestamps are names of offsets (-1 the end, -2 the start).
                raise ValueError(f"{text[:60]!r} is before 1970, where the timestamps of records begin")
            return StartOffset(StartKind.TIMESTAMP, number)
    elif text.removeprefix("-").isdecimal() and len(text) <= 19 and text.isascii():
        number = int(text)
        return (
            StartOffset(StartKind.BEFORE_END, -number)
            if text.startswith("-")
            else StartOffset(StartKind.OFFSET, number)
        )
    raise ValueError(
        f"{text[:60]!r} is not a position: use start, end, 47 (offset), -3 (before the end) or @2026-11-21T08:00:00Z"
    )


def _timestamp_ms(text: str) -> int | None:
    if text.isascii() and text.isdecimal() and len(text) > 8 and len(text) <= 16:
        return int(text)
    return timestamp_ms(text)


def resolve(start: StartOffset, earliest: int, latest: int) -> int:
    """Return the start offset in a partition. The broker resolves times instead.

    >>> resolve(StartOffset(StartKind.BEFORE_END, 3), earliest=10, latest=12)
    10
    >>> resolve(StartOffset(StartKind.OFFSET, 47), earliest=0, latest=100)
    47
    """
    if start.kind is StartKind.START:
        return earliest
    if start.kind is StartKind.END:
        return latest
    if start.kind is StartKind.BEFORE_END:
        return max(earliest, latest - start.number)
    assert start.kind is StartKind.OFFSET
    # An offset that is gone, or not there yet, is the nearest one that is.
    return min(max(start.number, earliest), latest)
