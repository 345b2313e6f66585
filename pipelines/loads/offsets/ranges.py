"""Ranges of offsets in the partitions of one topic. Pure.

A range `(start, end)` has its end excluded, as everywhere in Kafka. The ranges of a partition are in order and neither
overlap nor touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

__all__ = [
    "NO_RANGES",
    "Range",
    "Ranges",
    "described",
    "from_json",
    "joined",
    "minus",
    "shared",
    "size",
    "to_json",
]

Range: TypeAlias = tuple[int, int]
Ranges: TypeAlias = Mapping[int, tuple[Range, ...]]

NO_RANGES: Final[Ranges] = {}
_DESCRIBED_MAX: Final = 5


def joined(*parts: Ranges) -> dict[int, tuple[Range, ...]]:
    """The offsets of any of the parts.

    >>> joined({0: ((5, 9),)}, {0: ((9, 12), (20, 21)), 1: ((3, 3),)})
    {0: ((5, 12), (20, 21))}
    """
    found: dict[int, tuple[Range, ...]] = {}
    for partition in sorted({partition for part in parts for partition in part}):
        merged: list[Range] = []
        for start, end in sorted(each for part in parts for each in part.get(partition, ()) if each[0] < each[1]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        if merged:
            found[partition] = tuple(merged)
    return found


def shared(left: Ranges, right: Ranges) -> dict[int, tuple[Range, ...]]:
    """The offsets of both.

    >>> shared({0: ((5, 9), (12, 15))}, {0: ((8, 13),), 1: ((0, 4),)})
    {0: ((8, 9), (12, 13))}
    """
    return joined(
        {
            partition: tuple(
                (max(start, low), min(end, high))
                for start, end in parts
                for low, high in right.get(partition, ())
                if max(start, low) < min(end, high)
            )
            for partition, parts in left.items()
        }
    )


def minus(left: Ranges, right: Ranges) -> dict[int, tuple[Range, ...]]:
    """The offsets of `left` that `right` lacks.

    >>> minus({0: ((5, 20),)}, {0: ((0, 6), (8, 10), (19, 30))})
    {0: ((6, 8), (10, 19))}
    """
    found: dict[int, tuple[Range, ...]] = {}
    for partition, parts in left.items():
        rest: list[Range] = []
        for part_start, end in parts:
            start = part_start
            for low, high in right.get(partition, ()):
                if high <= start or low >= end:
                    continue
                rest.append((start, min(low, end)))
                start = max(start, high)
            rest.append((start, end))
        found[partition] = tuple(rest)
    return joined(found)


def size(ranges: Ranges) -> int:
    """The number of offsets."""
    return sum(end - start for parts in ranges.values() for start, end in parts)


def described(ranges: Ranges) -> str:
    """The ranges in a message, with the first and the last offset of each.

    >>> described({0: ((5, 9),), 1: ((3, 4), (7, 9))})
    'partition 0: 5 to 8, partition 1: 3, 7 to 8'
    """
    said = []
    for partition, parts in list(ranges.items())[:_DESCRIBED_MAX]:
        texts = [str(start) if end - start == 1 else f"{start} to {end - 1}" for start, end in parts[:_DESCRIBED_MAX]]
        more = ", ..." if len(parts) > _DESCRIBED_MAX else ""
        said.append(f"partition {partition}: {', '.join(texts)}{more}")
    rest = len(ranges) - _DESCRIBED_MAX
    return ", ".join(said) + (f", and {rest} more partitions" if rest > 0 else "")


def to_json(ranges: Ranges) -> dict[str, list[list[int]]]:
    """The ranges as JSON values."""
    return {str(partition): [list(each) for each in parts] for partition, parts in sorted(ranges.items())}


def from_json(value: Any) -> dict[int, tuple[Range, ...]]:
    """The ranges of `to_json`. Raises ValueError."""
    try:
        items: Iterable[tuple[str, list[list[int]]]] = value.items()
        return joined({int(partition): tuple((int(a), int(b)) for a, b in parts) for partition, parts in items})
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{str(value)[:100]} are no ranges of offsets") from error
