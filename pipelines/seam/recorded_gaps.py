"""The gaps that an archive's table has recorded: offsets below its end whose records it never had. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from headwater.pipelines.seam.marks import PREFIX

__all__ = ["Gaps", "OffsetPart", "parted", "recorded_gaps"]

#: Offsets from the first to before the second.
OffsetPart: TypeAlias = tuple[int, int]
#: The gaps of each partition by their first offsets; none overlap.
Gaps: TypeAlias = Mapping[int, tuple[OffsetPart, ...]]

_GAP: Final = re.compile(r"(\d+)/gap/(\d+)")


def recorded_gaps(marks: Mapping[str, int], topic_id: str) -> Gaps:
    """The gaps by a table's `txn` actions.

    >>> recorded_gaps({"headwater.archive/t/0": 9, "headwater.archive/t/0/gap/0": 4}, "t")
    {0: ((0, 4),)}
    """
    found: dict[int, list[OffsetPart]] = {}
    for app_id, after in marks.items():
        gap = _GAP.fullmatch(app_id.removeprefix(f"{PREFIX}{topic_id}/"))
        if gap is not None:
            found.setdefault(int(gap[1]), []).append((int(gap[2]), after))
    return {partition: tuple(sorted(parts)) for partition, parts in sorted(found.items())}


def parted(start: int, end: int, gaps: Iterable[OffsetPart]) -> tuple[list[OffsetPart], list[OffsetPart]]:
    """What of [start, end) is outside the gaps, and what is in them.

    >>> parted(2, 20, [(0, 4), (10, 12), (18, 30)])
    ([(4, 10), (12, 18)], [(2, 4), (10, 12), (18, 20)])
    """
    outside: list[OffsetPart] = []
    inside: list[OffsetPart] = []
    at = start
    for first, after in sorted(gaps):
        low, high = max(first, at), min(after, end)
        if low >= high:
            continue
        if at < low:
            outside.append((at, low))
        inside.append((low, high))
        at = high
    if at < end:
        outside.append((at, end))
    return outside, inside
