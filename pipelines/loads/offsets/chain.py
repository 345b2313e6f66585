"""The chain of loads into a target: loads that each begin where the one before ended. Pure.

Its end is where `last` begins. Any other load, such as an older hour that is loaded later, leaves the chain as it is,
unless it closes the gap to what was loaded further on.
"""

from __future__ import annotations

from headwater.pipelines.loads.offsets.planning import TargetState
from headwater.pipelines.loads.offsets.ranges import Ranges, joined

__all__ = ["chain_after"]


def chain_after(before: TargetState, covered: Ranges) -> dict[int, int]:
    """The chain's ends after a load.

    >>> chain_after(TargetState({0: ((0, 5),), 1: ((5, 9),)}, {0: 5, 1: 9}), {0: ((5, 8),), 1: ((0, 4),), 2: ((3, 7),)})
    {0: 8, 1: 9, 2: 7}
    >>> chain_after(TargetState({0: ((0, 5), (8, 9))}, {0: 5}), {0: ((5, 8),)})
    {0: 9}
    """
    found = dict(before.chain_ends)
    coverage = joined(before.coverage, covered)
    for partition, parts in covered.items():
        end = found.get(partition, parts[0][0])
        found[partition] = max(high for low, high in coverage[partition] if low <= end)
    return found
