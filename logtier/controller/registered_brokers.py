"""The brokers that are registered in the store, and the requests of those that were."""

import logging
from collections.abc import Mapping

from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage
from headwater.logtier.metadata.store import Delete, MetadataStore, Operation
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)


async def registered_brokers(
    store: MetadataStore, known: Mapping[int, BrokerRegistration]
) -> dict[int, BrokerRegistration]:
    """Return the brokers that are registered in the store now.

    A damaged node says nothing of its broker: what is `known` stays, and the other brokers are served.
    """
    names = await store.children(paths.BROKER_IDS)
    found = {}
    nodes = await store.get_many([f"{paths.BROKER_IDS}/{name}" for name in names])
    for name, node in zip(names, nodes, strict=True):
        if node is None:
            continue
        path = f"{paths.BROKER_IDS}/{name}"
        if not name.isdecimal():
            log.error("%s is no registration of a broker; delete it", path)
            continue
        broker_id = int(name)
        try:
            found[broker_id] = BrokerRegistration(broker_id, *paths.decode_broker(path, node.data, epoch=node.czxid))
        except paths.CorruptNodeError as error:
            log.error("%s; delete it, and broker %d registers again", error, broker_id)
            before = known.get(broker_id)
            if before is not None and before.epoch == node.czxid:
                found[broker_id] = before
    return found


def plan_unregistration(image: MetadataImage, broker_id: int, *, is_registered: bool) -> list[Operation]:
    """Return the operations that forget a broker (KIP-631).

    Its replicas stay where they are assigned, and are offline. If it returns, it counts as one that has lost records,
    for nothing is known of its last epoch.

    Args:
        is_registered: Whether the store has a registration of it now, which this controller may not have noted yet.

    Raises:
        KafkaError: broker_id_not_registered; invalid_request, if it runs.
    """
    known = image.registrations.get(broker_id)
    if is_registered or (known is not None and known.is_alive):
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Broker {broker_id} is running: stop it, and unregister it when its session has ended.",
        )
    if known is None:
        raise KafkaError(ErrorCode.broker_id_not_registered, f"Broker ID {broker_id} is not currently registered")
    return [Delete(paths.known_broker_path(broker_id))]


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> None:
    """Check that a request comes from the broker that is registered; KafkaError (stale_broker_epoch)."""
    known = image.brokers.get(broker_id)
    if known is None or known.epoch != broker_epoch:
        present = "not registered" if known is None else f"registered in epoch {known.epoch}"
        raise KafkaError(
            ErrorCode.stale_broker_epoch, f"Broker {broker_id} of epoch {broker_epoch} asks, but it is {present}."
        )
