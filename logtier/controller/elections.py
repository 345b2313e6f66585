"""Leaders of partitions when brokers come back: pure.

A broker that returns was away, however short the absence: records that it had not flushed may be gone, and a client or
a follower learns of it by the leader epoch (KIP-320, KIP-380). Each of its partitions therefore goes through an
election, as if the controller had seen the broker leave and come back.
"""

from collections.abc import Callable
from dataclasses import replace

from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage
from headwater.logtier.metadata.store import Create, Operation, SetData
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage, change_topic


def elected(partition: PartitionImage, is_candidate: Callable[[int], bool]) -> PartitionImage:
    """Return a partition after an election: the first replica in the ISR that is a candidate leads, else none.

    >>> away = PartitionImage(leader=1, leader_epoch=3, partition_epoch=8, replicas=(1, 2), isr=(1, 2))
    >>> elected(away, lambda broker: broker == 2)
    PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=(1, 2), isr=(1, 2))
    """
    leader = next((each for each in partition.replicas if each in partition.isr and is_candidate(each)), NO_BROKER)
    return _led_by(partition, leader)


def after_return(partition: PartitionImage, broker_id: int, is_alive: Callable[[int], bool]) -> PartitionImage:
    """Return a partition after a broker was away and came back; unchanged if it concerns another broker.

    The other members of the ISR come first: they have not been away.

    Args:
        is_alive: Whether another broker is alive.
    """
    if broker_id not in partition.replicas or partition.leader not in (broker_id, NO_BROKER):
        return partition
    if partition.isr == (broker_id,):
        return _led_by(partition, broker_id)
    without = elected(partition, lambda other: other != broker_id and is_alive(other))
    if without.leader == NO_BROKER:
        return elected(partition, lambda other: other == broker_id)
    return replace(without, isr=tuple(member for member in partition.isr if member != broker_id))


def _led_by(partition: PartitionImage, leader: int) -> PartitionImage:
    return PartitionImage(
        leader, partition.leader_epoch + 1, partition.partition_epoch + 1, partition.replicas, partition.isr
    )


def plan_registration(image: MetadataImage, registration: BrokerRegistration) -> list[Operation]:
    """Return the operations that make a broker known and, in a new broker epoch, elect leaders of its partitions."""
    broker_id = registration.id
    path = paths.known_broker_path(broker_id)
    data = paths.encode_broker(
        registration.host, registration.port, registration.rack, registration.epoch, registration.endpoints
    )
    known = image.registrations.get(broker_id)
    operations: list[Operation] = [Create(path, data) if known is None else SetData(path, data)]
    if known is not None and known.is_alive and known.epoch == registration.epoch:
        return operations  # the same life of the broker: only its addresses have changed
    for topic in image.topics.values():
        partitions = tuple(
            after_return(partition, broker_id, image.brokers.__contains__) for partition in topic.partitions
        )
        operations += change_topic(topic.name, topic.topic_id, topic.partitions, partitions)
    return operations
