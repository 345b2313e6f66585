"""Where a load starts and ends, as a user says it: offsets, a time, `earliest`, `latest`, `last`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from headwater.pipelines.timestamps import timestamp_ms

__all__ = ["Position", "PositionKind", "parse_position"]

_OFFSET_MAX: Final = (1 << 63) - 1
_PARTITIONS_MAX: Final = 100_000
_TIME_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999
_OFFSETS = re.compile(r"\d+:\d+(,\d+:\d+)*")
_HINT: Final = (
    "use earliest, latest, last, an offset (47), offsets by partition (0:47,1:12) or a time (2013-01-01T05:00:00Z)"
)


class PositionKind(Enum):
    """Kind of a position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    #: Where the chain of loads into the target ends.
    LAST = "last"
    OFFSETS = "offsets"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a topic.

    Attributes:
        offset: One offset for every partition.
        offsets: Offsets by partition.
        time_ms: A time, in milliseconds since 1970: the first record with this timestamp or a later one.
    """

    kind: PositionKind
    text: str
    offset: int | None = None
    offsets: dict[int, int] = field(default_factory=dict)
    time_ms: int = 0


def parse_position(text: str) -> Position:
    """Parse a position; a time without an offset is UTC. Raises ValueError.

    >>> parse_position("last").kind, parse_position("0:5,1:7").offsets, parse_position("47").offset
    (<PositionKind.LAST: 'last'>, {0: 5, 1: 7}, 47)
    >>> parse_position("2013-01-01T05:00:00+01:00").time_ms == parse_position("@1357012800000").time_ms
    True
    >>> parse_position("soon")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: 'soon' is not a position: use earliest, ...
    """
    said = text.strip()
    if said in ("earliest", "latest", "last"):
        return Position(PositionKind(said), said)
    if said.isascii() and said.isdecimal() and int(said[:20]) <= _OFFSET_MAX:
        return Position(PositionKind.OFFSETS, said, offset=int(said))
    if _OFFSETS.fullmatch(said):
        return Position(PositionKind.OFFSETS, said, offsets=_offsets(said))
    time_ms = _time_ms(said)
    if time_ms is None:
        raise ValueError(f"{text[:60]!r} is not a position: {_HINT}")
    if time_ms > _TIME_MS_MAX:
        raise ValueError(f"{text[:60]!r} is after the year 9999")
    if time_ms < 0:
        raise ValueError(f"{text[:60]!r} is before 1970, where the timestamps of records begin")
    return Position(PositionKind.TIME, said, time_ms=time_ms)


def _offsets(text: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for pair in text.split(","):
        partition, _, offset = pair.partition(":")
        if len(partition) > 6 or int(partition) > _PARTITIONS_MAX or int(offset[:20]) > _OFFSET_MAX:
            raise ValueError(f"{pair[:60]!r} is no partition with an offset")
        if int(partition) in found:
            raise ValueError(f"{text[:60]!r} names partition {partition} twice")
        found[int(partition)] = int(offset)
    return found


def _time_ms(text: str) -> int | None:
    said = text.removeprefix("@")
    if text.startswith("@") and said.isascii() and said.isdecimal() and len(said) <= 16:
        return int(said)
    return timestamp_ms(said)
