"""The finalized feature levels in a metadata store, which a release reads before anything else."""

from __future__ import annotations

from headwater.logtier.metadata import paths
from headwater.logtier.metadata.store import MetadataStore
from headwater.logtier.protocol.features import (
    FIRST_FEATURES,
    SUPPORTED_FEATURES,
    FeatureRanges,
    check_supported,
)


async def check_stored_levels(store: MetadataStore, supported: FeatureRanges = SUPPORTED_FEATURES) -> None:
    """Check that a release can take part in a cluster by its levels alone: other nodes may have a form of later ones.

    Raises:
        UnsupportedFeaturesError: It cannot.
        CorruptNodeError, MetadataStoreError: The levels cannot be read.
    """
    await store.sync()  # a server of a quorum may be behind
    (node,) = await store.get_many([paths.FEATURES])
    check_supported(supported, FIRST_FEATURES if node is None else paths.decode_features(paths.FEATURES, node.data))
