"""The chain of loads into a target: loads that each begin where the one before ended. Pure.

Its end is where `last` begins. Any other load, such as an older hour that is loaded later, leaves the chain as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.pipelines.loads.ranges import Ranges

__all__ = ["chain_after", "continues"]


def continues(ends: Mapping[int, int], partition: int, start: int) -> bool:
    """Whether a range of a partition continues the chain, or begins it."""
    return partition not in ends or ends[partition] == start


def chain_after(ends: Mapping[int, int], covered: Ranges) -> dict[int, int]:
    """The chain's ends after a load.

    >>> chain_after({0: 5, 1: 9}, {0: ((5, 8),), 1: ((0, 4),), 2: ((3, 7),)})
    {0: 8, 1: 9, 2: 7}
    """
    found = dict(ends)
    for partition, parts in covered.items():
        for start, end in parts:
            if continues(found, partition, start):
                found[partition] = end
    return found
