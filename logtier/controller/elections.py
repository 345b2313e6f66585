"""Leaders of partitions when brokers come, go and return: pure.

A broker that returns was away, however short the absence: records that it had not flushed may be gone, and a client or
a follower learns of it by the leader epoch (KIP-320, KIP-380). Each of its partitions therefore goes through an
election, as if the controller had seen the broker leave and come back.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final
from uuid import UUID

from headwater.logtier.controller.live_brokers import NOBODY, LiveBrokers
from headwater.logtier.controller.partition_draft import Candidates, PartitionDraft
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage, TopicImage
from headwater.logtier.metadata.store import Create, Operation, SetData
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage, change_topic

#: Elections of preferred leaders at a time, as in Kafka: clients of each partition look for its new leader.
PREFERRED_ELECTIONS_MAX: Final = 1_000

#: Returns the effective min.insync.replicas of a topic.
MinIsr = Callable[[TopicImage], int]
#: Returns the effective unclean.leader.election.enable of a topic.
AllowsUnclean = Callable[[TopicImage], bool]


def never_unclean(_: TopicImage) -> bool:
    """The default: only members of the ISR and of the ELR, and the last known leader, are elected."""
    return False


def plan_registration(
    image: MetadataImage,
    registration: BrokerRegistration,
    min_isr: MinIsr,
    *,
    is_clean: Callable[[str], bool],
    allows_unclean: AllowsUnclean = never_unclean,
    shutting_down: Mapping[int, int] = NOBODY,
) -> list[Operation]:
    """Return the operations that make a broker known and, in a new broker epoch, elect leaders of its partitions.

    They may take effect one by one. The registration is the last: a broker that others see as alive has been taken out
    of every ISR where it cannot be trusted.

    Args:
        is_clean: Returns whether the broker's logs in a log folder, given by its id, have all that they had.
        allows_unclean: Whether another replica may lead, which may lack committed records, if none of them can.
        shutting_down: Broker epochs by the ids of brokers that want to shut down, and lead nothing (KIP-841).
    """
    broker_id = registration.id
    path = paths.known_broker_path(broker_id)
    data = paths.encode_known_broker(
        registration.host,
        registration.port,
        registration.rack,
        registration.epoch,
        registration.endpoints,
        process=registration.process,
    )
    known = image.registrations.get(broker_id)
    made_known: Operation = Create(path, data) if known is None else SetData(path, data)
    brokers = LiveBrokers(image, shutting_down, coming=registration)
    if known is not None and known.is_alive and known.epoch == registration.epoch:
        # The same life of the broker: its addresses have changed, or what can be used of its log folders.
        changed = changed_topics(image.topics.values(), partial(_with_folders, registration, brokers), min_isr)
        return [*changed, made_known]

    def returned(topic: TopicImage, partition: PartitionImage, minimum: int) -> PartitionImage:
        if broker_id not in partition.replicas:
            return partition
        draft = PartitionDraft(partition, minimum, brokers)
        draft.come_back(broker_id, is_clean=is_clean(partition.directory_of(broker_id)))
        draft.elect(unclean=allows_unclean(topic))
        return draft.result()

    return [*changed_topics(image.topics.values(), returned, min_isr), made_known]


def _with_folders(
    registration: BrokerRegistration,
    brokers: Candidates,
    _: TopicImage,
    partition: PartitionImage,
    minimum: int,
) -> PartitionImage:
    """Return the state of a partition after folders of a broker have failed, or are full."""
    broker_id, process = registration.id, registration.process
    if broker_id not in partition.isr:
        return partition
    directory = partition.directory_of(broker_id)
    draft = PartitionDraft(partition, minimum, brokers)
    if not process.has_online(directory):
        draft.lose(broker_id)
    elif partition.leader == broker_id and not process.has_room(directory):
        draft.give_way()
    return draft.result()


def plan_departure(
    image: MetadataImage,
    broker_id: int,
    min_isr: MinIsr,
    allows_unclean: AllowsUnclean = never_unclean,
    shutting_down: Mapping[int, int] = NOBODY,
) -> list[Operation]:
    """Return the operations that note a broker as gone, and elect leaders where it led.

    They may take effect one by one: the broker counts as alive until the last of them, and a controller that takes over
    plans the rest.
    """
    known = image.registrations[broker_id]
    data = paths.encode_known_broker(
        known.host, known.port, known.rack, known.epoch, known.endpoints, is_alive=False, process=known.process
    )
    brokers = LiveBrokers(image, shutting_down, going=broker_id)

    def left(topic: TopicImage, partition: PartitionImage, minimum: int) -> PartitionImage:
        if broker_id not in partition.isr and partition.leader != broker_id:
            return partition
        draft = PartitionDraft(partition, minimum, brokers)
        draft.lose(broker_id)
        if allows_unclean(topic):
            draft.elect(unclean=True)
        return draft.result()

    return [*changed_topics(image.topics.values(), left, min_isr), SetData(paths.known_broker_path(broker_id), data)]


def plan_unclean_elections(
    image: MetadataImage, brokers: Candidates, min_isr: MinIsr, allows_unclean: AllowsUnclean
) -> list[Operation]:
    """Return the operations that elect leaders where there is none, although committed records may be lost.

    They may take effect one by one. A topic may have allowed it since its last leader died.
    """

    def led(topic: TopicImage, partition: PartitionImage, minimum: int) -> PartitionImage:
        if partition.leader != NO_BROKER or not allows_unclean(topic):
            return partition
        draft = PartitionDraft(partition, minimum, brokers)
        draft.elect(unclean=True)
        return draft.result()

    return changed_topics(image.topics.values(), led, min_isr)


def plan_preferred_elections(image: MetadataImage, brokers: Candidates, min_isr: MinIsr) -> list[Operation]:
    """Return the operations that give leaderships back to preferred replicas that are in the ISR.

    They may take effect one by one. At most PREFERRED_ELECTIONS_MAX partitions change; a later call changes others.
    """
    rest = PREFERRED_ELECTIONS_MAX

    def preferred(_: TopicImage, partition: PartitionImage, minimum: int) -> PartitionImage:
        nonlocal rest
        if partition.leader in (partition.replicas[0], NO_BROKER) or not rest:
            return partition
        draft = PartitionDraft(partition, minimum, brokers)
        draft.prefer(partition.replicas[0])
        after = draft.result()
        rest -= after is not partition
        return after

    return changed_topics(image.topics.values(), preferred, min_isr)


def plan_hand_overs(
    image: MetadataImage, brokers: Candidates, min_isr: MinIsr, topic_ids: Collection[UUID] | None = None
) -> list[Operation]:
    """Return the operations that take leaderships, of all topics or the given ones, from leaders with full log folders.

    They may take effect one by one. Members of the ISR that have room lead instead.
    """
    if not any(broker.process.full_directories for broker in image.brokers.values()):
        return []
    topics = image.topics.values() if topic_ids is None else filter(None, map(image.topic_by_id, topic_ids))
    return changed_topics(topics, partial(_given_away, brokers), min_isr)


def _given_away(brokers: Candidates, _: TopicImage, partition: PartitionImage, minimum: int) -> PartitionImage:
    leader = partition.leader
    if leader == NO_BROKER or brokers.has_room(leader, partition.directory_of(leader)):
        return partition
    draft = PartitionDraft(partition, minimum, brokers)
    draft.give_way()
    return draft.result()


def plan_lower_min_isr(image: MetadataImage, min_isr: MinIsr) -> list[Operation]:
    """Return the operations that empty the ELRs that another min.insync.replicas, returned by `min_isr`, ends.

    They may take effect one by one, and must do so before the config: an ISR that has the new minimum of members
    commits records which the eligible leaders lack (KIP-966). An ELR of a smaller ISR stays, and so does that of a
    partition without a leader, as nothing is committed meanwhile. A reassignment that waited for the minimum ends.
    """
    brokers = LiveBrokers(image)

    def lowered(topic: TopicImage, partition: PartitionImage, minimum: int) -> PartitionImage:
        del topic
        draft = PartitionDraft(partition, minimum, brokers)
        if partition.leader != NO_BROKER:
            draft.alter(partition.isr, is_recovering=partition.is_recovering)
        return draft.result()

    concerned = (
        topic for topic in image.topics.values() if any(each.elr or each.reassignment for each in topic.partitions)
    )
    return changed_topics(concerned, lowered, min_isr)


def changed_topics(
    topics: Iterable[TopicImage],
    change: Callable[[TopicImage, PartitionImage, int], PartitionImage],
    min_isr: MinIsr,
) -> list[Operation]:
    """Return the operations after a change of each partition; they may take effect one by one.

    Args:
        change: Returns a partition's next state, by its topic and the topic's min.insync.replicas.
    """
    operations: list[Operation] = []
    for topic in topics:
        minimum = min_isr(topic)
        partitions = tuple([change(topic, partition, minimum) for partition in topic.partitions])
        operations += change_topic(topic.name, topic.topic_id, topic.partitions, partitions)
    return operations
