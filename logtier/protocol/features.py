"""Kafka's feature levels (KIP-584): functions beyond the versions of single APIs, which all brokers must have. Pure.

A feature is listed with the levels between which this release really behaves differently, and no others. A change of
the form in which metadata is stored needs a new level of `metadata.version`, so that no broker of an earlier release
reads it: the numbers are those of Kafka 4.1, whose tools name them.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

METADATA_VERSION: Final = "metadata.version"
GROUP_VERSION: Final = "group.version"
TRANSACTION_VERSION: Final = "transaction.version"
ELR_VERSION: Final = "eligible.leader.replicas.version"
KRAFT_VERSION: Final = "kraft.version"


class FeatureRange(NamedTuple):
    """The lowest and the highest level of a feature that a release supports."""

    first: int
    last: int

    def __str__(self) -> str:
        """Return the range as Kafka writes it.

        >>> str(FeatureRange(0, 2)), str(FeatureRange(1, 1))
        ('0-2', '1')
        """
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    def __contains__(self, level: object) -> bool:
        """Whether a level is in the range."""
        return isinstance(level, int) and self.first <= level <= self.last


FeatureRanges = Mapping[str, FeatureRange]
"""Ranges by feature. A feature that is not listed is supported at level 0, as if it did not exist."""

NOT_SUPPORTED: Final = FeatureRange(0, 0)

SUPPORTED_FEATURES: Final[FeatureRanges] = {
    # 1: eligible leader replicas (KIP-966), without which the controller of this release does not elect.
    ELR_VERSION: FeatureRange(1, 1),
    # 0: groups of the classic protocol only; 1: the consumer protocol (KIP-848).
    GROUP_VERSION: FeatureRange(0, 1),
    # 0: the voters are fixed.
    KRAFT_VERSION: FeatureRange(0, 0),
    # Kafka 4.1's.
    METADATA_VERSION: FeatureRange(27, 27),
    # 1: records of transactions have tagged fields; 2: each transaction has its own epoch, and a write adds the
    # partition to the transaction (KIP-890).
    TRANSACTION_VERSION: FeatureRange(1, 2),
}

EARLIER_RELEASES: Final[FeatureRanges] = {
    ELR_VERSION: FeatureRange(1, 1),
    GROUP_VERSION: FeatureRange(1, 1),
    METADATA_VERSION: FeatureRange(27, 27),
    TRANSACTION_VERSION: FeatureRange(1, 2),
}
"""What releases support whose registrations state no features."""


class FinalizedFeatures(NamedTuple):
    """The levels in effect in the whole cluster; those of level 0 are not listed. `epoch` counts their changes."""

    epoch: int
    levels: Mapping[str, int]

    def level(self, feature: str) -> int:
        """Return the level of a feature."""
        return self.levels.get(feature, 0)


FIRST_FEATURES: Final = FinalizedFeatures(
    0,
    MappingProxyType({name: each.last for name, each in EARLIER_RELEASES.items()}),
)
"""The levels of a new cluster, and of one of earlier releases, whose metadata has none."""


def beyond(supported: FeatureRanges, finalized: FinalizedFeatures) -> str | None:
    """Return why a release with these ranges cannot take part in a cluster; None if it can.

    >>> beyond({"a": FeatureRange(0, 1)}, FinalizedFeatures(0, {"a": 2, "b": 1}))
    'a is finalized at level 2 and supported at 0-1; b is finalized at level 1 and not supported'
    """
    reasons = []
    for name, level in sorted(finalized.levels.items()):
        range_ = supported.get(name, NOT_SUPPORTED)
        if level not in range_:
            support = "not supported" if range_ == NOT_SUPPORTED else f"supported at {range_}"
            reasons.append(f"{name} is finalized at level {level} and {support}")
    # A feature at level 0 is not among the finalized ones.
    for name, range_ in sorted(supported.items()):
        if range_.first > 0 and name not in finalized.levels:
            reasons.append(f"{name} is finalized at level 0 and supported at {range_}")
    return "; ".join(reasons) or None


class UnsupportedFeaturesError(Exception):
    """The levels of the cluster are not those of this release."""


def check_supported(supported: FeatureRanges, finalized: FinalizedFeatures) -> None:
    """Check that a release can take part in a cluster; UnsupportedFeaturesError."""
    reason = beyond(supported, finalized)
    if reason is not None:
        raise UnsupportedFeaturesError(
            f"this release cannot take part in the cluster: {reason}; start the release that the other brokers run"
        )


def registered_ranges(features: Sequence[tuple[str, int, int]]) -> FeatureRanges:
    """Return the ranges of a registration (`BrokerProcess.features`)."""
    return {name: FeatureRange(first, last) for name, first, last in features} or EARLIER_RELEASES


def stated_ranges(supported: FeatureRanges) -> tuple[tuple[str, int, int], ...]:
    """Return what a broker registers of its ranges."""
    return tuple((name, each.first, each.last) for name, each in sorted(supported.items()))
