"""Leaders of partitions when brokers come, go and return: pure.

A broker that returns was away, however short the absence: records that it had not flushed may be gone, and a client or
a follower learns of it by the leader epoch (KIP-320, KIP-380). Each of its partitions therefore goes through an
election, as if the controller had seen the broker leave and come back.
"""

from collections.abc import Callable

from headwater.logtier.controller.partition_draft import Candidates, PartitionDraft
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage, TopicImage
from headwater.logtier.metadata.store import Create, Operation, SetData
from headwater.logtier.metadata.topic_nodes import PartitionImage, change_topic

#: Returns the effective min.insync.replicas of a topic.
MinIsr = Callable[[TopicImage], int]


class _LiveBrokers:
    """The brokers that are alive in an image, and one more that is about to be."""

    def __init__(self, image: MetadataImage, coming: int) -> None:
        self._image = image
        self._coming = coming

    def is_candidate(self, broker_id: int) -> bool:
        return broker_id == self._coming or broker_id in self._image.brokers

    def has_room(self, broker_id: int) -> bool:  # noqa: ARG002 - a broker with a full log folder does not report it yet
        return True


def after_return(
    partition: PartitionImage, broker_id: int, min_insync_replicas: int, candidates: Candidates, *, is_clean: bool
) -> PartitionImage:
    """Return a partition after a broker was away and came back; the same object if nothing changes.

    Args:
        candidates: The brokers, with the one that came back.
        is_clean: Whether it stopped cleanly, so that its logs have all that they had.
    """
    if broker_id not in partition.replicas:
        return partition
    draft = PartitionDraft(partition, min_insync_replicas, candidates)
    draft.lose(broker_id)
    if not is_clean:
        draft.distrust(broker_id)
    draft.admit(broker_id)
    draft.elect()
    return draft.result()


def plan_registration(
    image: MetadataImage, registration: BrokerRegistration, min_isr: MinIsr, *, is_clean: bool
) -> list[Operation]:
    """Return the operations that make a broker known and, in a new broker epoch, elect leaders of its partitions."""
    broker_id = registration.id
    path = paths.known_broker_path(broker_id)
    data = paths.encode_known_broker(
        registration.host, registration.port, registration.rack, registration.epoch, registration.endpoints
    )
    known = image.registrations.get(broker_id)
    operations: list[Operation] = [Create(path, data) if known is None else SetData(path, data)]
    if known is not None and known.is_alive and known.epoch == registration.epoch:
        return operations  # the same life of the broker: only its addresses have changed
    candidates = _LiveBrokers(image, broker_id)
    for topic in image.topics.values():
        minimum = min_isr(topic)
        partitions = tuple(
            [
                after_return(partition, broker_id, minimum, candidates, is_clean=is_clean)
                for partition in topic.partitions
            ]
        )
        operations += change_topic(topic.name, topic.topic_id, topic.partitions, partitions)
    return operations
