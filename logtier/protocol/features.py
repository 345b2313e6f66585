"""Kafka's feature levels, as ApiVersions tells them: what clients may rely on beyond the versions of single APIs."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Feature(NamedTuple):
    """Levels that this release knows, and the one that holds."""

    first: int
    last: int
    finalized: int


FEATURES: Final[Mapping[str, Feature]] = {
    # 1: the consumer protocol (KIP-848).
    "group.version": Feature(0, 1, 1),
    # Kafka 4.1's; its levels are steps of Kafka's own metadata and APIs.
    "metadata.version": Feature(7, 27, 27),
    # 2: each transaction has an epoch of its own, and partitions are added by writing to them (KIP-890).
    "transaction.version": Feature(0, 2, 2),
}

FINALIZED_FEATURES_EPOCH: Final = 0
"""How often the finalized levels have been changed: a release decides them for good."""
