"""How even is even enough: bands around the mean of brokers' or folders' values. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["BalanceBand", "Band"]


@dataclass(frozen=True, slots=True)
class BalanceBand:
    """How far from the mean a broker may be: copying costs more than a small difference.

    Attributes:
        threshold_percent: Part of the mean, as the threshold of HDFS's balancer.
        negligible_bytes: Least half-width of a band of bytes; a few log segments differ by chance.
    """

    threshold_percent: int = 10
    negligible_bytes: int = 64 << 20

    def of_bytes(self, values: Iterable[int]) -> Band:
        """Return the band of bytes."""
        total, number = _total(values)
        mean = total // number
        half = max(mean * self.threshold_percent // 100, self.negligible_bytes)
        return Band(mean - half, mean, mean + half)

    def of_counts(self, values: Iterable[int]) -> Band:
        """Return the band of counts: with the counts right below and above the mean always in it."""
        total, number = _total(values)
        low, high = total // number, -(-total // number)
        slack = total * self.threshold_percent // (100 * number)
        return Band(low - slack, low, high + slack)


class Band(NamedTuple):
    """The values that are even enough, and the mean, rounded down."""

    low: int
    mean: int
    high: int

    def excess(self, value: int) -> int:
        """Return how far a value is outside.

        >>> band = Band(8, 10, 12)
        >>> band.excess(7), band.excess(9), band.excess(15)
        (1, 0, 3)
        """
        return max(value - self.high, self.low - value, 0)

    def change(self, source: int, target: int, amount: int) -> int:
        """Return the change of the excess of both when an amount moves from one value to the other."""
        after = self.excess(source - amount) + self.excess(target + amount)
        return after - self.excess(source) - self.excess(target)


def _total(values: Iterable[int]) -> tuple[int, int]:
    listed = list(values)
    return sum(listed), len(listed)
