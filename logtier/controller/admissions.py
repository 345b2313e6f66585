"""Feature levels and brokers: whom the levels admit to the cluster, and which levels all of them support."""

import logging
from collections.abc import Mapping, Sequence

from headwater.logtier.controller.feature_state import FeatureUpdate, plan_update_features
from headwater.logtier.controller.registered_brokers import registered_brokers
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage
from headwater.logtier.metadata.store import MetadataStore, Operation
from headwater.logtier.protocol.features import SUPPORTED_FEATURES, FinalizedFeatures, beyond, registered_ranges

log = logging.getLogger(__name__)


async def plan_levels(
    store: MetadataStore, image: MetadataImage, controller_id: int, updates: Sequence[FeatureUpdate]
) -> list[Operation]:
    """Return the operations of an update of levels that every known broker supports.

    Brokers that have registered and are not in the image yet count, too.

    Raises:
        KafkaError: invalid_update_version, with the reason.
    """
    brokers = {**image.registrations, **await registered_brokers(store, image.registrations)}
    ranges = {broker_id: registered_ranges(each.process.features) for broker_id, each in brokers.items()}
    return plan_update_features(image.features, updates, {**ranges, controller_id: SUPPORTED_FEATURES})


class Admissions:
    """Which of the registered brokers are admitted to the cluster; each refusal is logged once a registration."""

    def __init__(self) -> None:
        #: Epochs of the brokers that are not admitted.
        self._refused: dict[int, int] = {}

    def admitted(
        self, registered: Mapping[int, BrokerRegistration], finalized: FinalizedFeatures
    ) -> dict[int, BrokerRegistration]:
        """Return the brokers that support the finalized levels; the others count as away.

        A release that knows the levels does not register itself. An earlier one does, or one that registered while the
        levels were raised, which stops when it sees them. A single node has checked itself at its start.
        """
        found = {}
        for broker_id, registration in registered.items():
            reason = beyond(registered_ranges(registration.process.features), finalized)
            if reason is None or registration.process == paths.NO_PROCESS:
                found[broker_id] = registration
            elif self._refused.get(broker_id) != registration.epoch:
                self._refused[broker_id] = registration.epoch
                log.error(
                    "broker %d is not admitted: %s; start it with the release that the other brokers run",
                    broker_id,
                    reason,
                )
        return found
