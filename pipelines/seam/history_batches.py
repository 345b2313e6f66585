"""Where a micro-batch of an archive's history ends: at the bounds of files, as Delta's statistics tell them. Pure.

A file may hold several partitions, and files overlap after OPTIMIZE: a bound is only a good place to end. Which rows a
batch has is said by its offsets alone, so that it has the same rows whatever files hold them later.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

__all__ = ["FileBounds", "first_offset", "history_ends"]


@dataclass(frozen=True, slots=True)
class FileBounds:
    """The least and greatest values of a file, inclusive; timestamps in milliseconds since 1970.

    A value without statistics is unbounded: `-math.inf` or `math.inf`.
    """

    partitions: tuple[float, float]
    offsets: tuple[float, float]
    timestamps_ms: tuple[float, float]

    def may_hold(self, partition: int) -> bool:
        """Whether rows of the partition may be in the file."""
        return self.partitions[0] <= partition <= self.partitions[1]


@dataclass(frozen=True, slots=True)
class _Step:
    """The offsets of one partition up to the next bound, and the timestamps of the files that may hold them."""

    end: int
    low_ms: float
    high_ms: float


def first_offset(files: Collection[FileBounds], partition: int, seam: int) -> int:
    """An offset before which no file has a row of the partition; the seam without files, 0 without statistics."""
    low = min((each.offsets[0] for each in files if each.may_hold(partition)), default=seam)
    return max(0, int(min(low, seam))) if low != -math.inf else 0


def history_ends(
    files: Collection[FileBounds], known: Mapping[int, int], seams: Mapping[int, int], most: int
) -> dict[int, int]:
    """The ends of the next batch by partition: whole files, until they have `most` offsets or the seams are reached.

    `known` are the starts. Partitions advance together in time: one whose next rows are all later than those of another
    waits, so that a watermark that the batch moves does not drop the other's rows.

    >>> hour = lambda n: FileBounds((0, 0), (n * 10, n * 10 + 9), (n, n))
    >>> history_ends([hour(0), hour(1), hour(2)], {0: 0}, {0: 30}, most=15)
    {0: 20}
    """
    ends = dict(known)
    while True:
        steps = {key: _step(files, key, ends[key], seam) for key, seam in seams.items() if ends.get(key, seam) < seam}
        if not steps or sum(ends[key] - known[key] for key in known) >= most:
            return ends
        horizon_ms = min(step.high_ms for step in steps.values())
        ends |= {key: step.end for key, step in steps.items() if step.low_ms <= horizon_ms}


def _step(files: Collection[FileBounds], partition: int, start: int, seam: int) -> _Step:
    ahead = [each for each in files if each.may_hold(partition) and each.offsets[1] >= start]
    end = int(min(seam, min((each.offsets[1] + 1 for each in ahead), default=seam)))
    found = [each for each in ahead if each.offsets[0] < end]
    if not found:  # a gap: nothing waits for it, nor does it wait
        return _Step(end, -math.inf, math.inf)
    return _Step(end, min(each.timestamps_ms[0] for each in found), max(each.timestamps_ms[1] for each in found))
