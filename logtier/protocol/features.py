"""Kafka's feature levels, reported by ApiVersions: functions beyond the versions of single APIs."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Feature(NamedTuple):
    """The supported range of levels of a feature, and the finalized level."""

    first: int
    last: int
    finalized: int


FEATURES: Final[Mapping[str, Feature]] = {
    # 1: eligible leader replicas (KIP-966), which Kafka 4.1 finalizes in a new cluster, of one node as well.
    "eligible.leader.replicas.version": Feature(0, 1, 1),
    # 1: the consumer protocol (KIP-848).
    "group.version": Feature(0, 1, 1),
    # Kafka 4.1's; its levels are steps of Kafka's own metadata and APIs.
    "metadata.version": Feature(7, 27, 27),
    # 2: each transaction has its own epoch, and a write adds the partition to the transaction (KIP-890).
    "transaction.version": Feature(0, 2, 2),
}

FINALIZED_FEATURES_EPOCH: Final = 0
"""Number of changes of the finalized levels, which each release fixes."""
