"""Changes of the finalized feature levels (UpdateFeatures, KIP-584). Pure."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headwater.logtier.metadata import paths
from headwater.logtier.metadata.store import Operation, SetData
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.features import (
    METADATA_VERSION,
    NOT_SUPPORTED,
    FeatureRanges,
    FinalizedFeatures,
)

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3
_UPGRADE_TYPES: Final = (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE)


class FeatureUpdate(NamedTuple):
    """A wanted level; `upgrade_type` is what the sender agrees to, with the protocol's numbers."""

    feature: str
    level: int
    upgrade_type: int = UPGRADE


def plan_update_features(
    finalized: FinalizedFeatures,
    updates: Sequence[FeatureUpdate],
    brokers: Mapping[int, FeatureRanges],
) -> list[Operation]:
    """Return the operations of an update, which takes effect as a whole; none if all levels are as wanted.

    Args:
        brokers: The ranges of all brokers, live or not: one that is away comes back as it was. The controller is one
            of them, which an administrator who asks another broker must be told by its id.

    Raises:
        KafkaError: invalid_update_version, with the reason; nothing is changed.
    """
    levels = dict(finalized.levels)
    for update in updates:
        problem = _problem(update, levels.get(update.feature, 0), brokers)
        if problem is not None:
            raise KafkaError(
                ErrorCode.invalid_update_version,
                "The update failed for all features since the following feature had an error: Invalid update version "
                f"{update.level} for feature {update.feature[:200]}. {problem}",
            )
        levels.pop(update.feature, None)
        if update.level > 0:
            levels[update.feature] = update.level
    if levels == finalized.levels:
        return []
    return [SetData(paths.FEATURES, paths.encode_features(FinalizedFeatures(finalized.epoch + 1, levels)))]


def _problem(update: FeatureUpdate, present: int, brokers: Mapping[int, FeatureRanges]) -> str | None:
    """Return why a level cannot be set, in Kafka's words and in the order of its checks."""
    feature, level, upgrade_type = update
    if upgrade_type not in _UPGRADE_TYPES:
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    for broker_id in sorted(brokers):
        range_ = brokers[broker_id].get(feature, NOT_SUPPORTED)
        if level not in range_:
            if range_ == NOT_SUPPORTED:
                return f"Broker {broker_id} does not support this feature."
            return f"Broker {broker_id} only supports versions {range_}"
    if level < present and upgrade_type == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if level > present and upgrade_type != UPGRADE:
        return "Can't downgrade to a newer version."
    if level < present and feature == METADATA_VERSION:
        if upgrade_type == UNSAFE_DOWNGRADE:
            return "Unsafe metadata downgrade is not supported in this version."
        return "Refusing to perform the requested downgrade because it might delete metadata information."
    return None
