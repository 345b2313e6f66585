"""Whose log it is: of a replica of this broker, of a partition on other brokers, or of nothing that is known. Pure."""

from collections.abc import Iterator, Mapping

from headwater.logtier.log.log import Log
from headwater.logtier.log.partition_metadata import NO_TOPIC_ID
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.topic_nodes import PartitionImage
from headwater.logtier.protocol.topic_partition import TopicPartition


def is_log_of_replica(broker_id: int, topic: TopicImage | None, index: int, log: Log) -> bool:
    """Whether a log on disk is a broker's replica of a partition."""
    if topic is None or index >= len(topic.partitions):
        return False
    state = topic.partitions[index]
    if broker_id not in state.replicas:
        return False
    # A power loss may take the file with the id, and leave records of an earlier topic of that name: replicas of
    # the partition would differ without an epoch or an offset that tells. The others have the records.
    return log.topic_id == topic.topic_id or (log.topic_id == NO_TOPIC_ID and _is_only_replica(broker_id, state))


def _is_only_replica(broker_id: int, state: PartitionImage) -> bool:
    """Whether no other replica has all records: one that is added to a single one has not, until it is in sync."""
    former = state.replicas if state.reassignment is None else state.reassignment.former
    return former == (broker_id,) and {broker_id}.issuperset((*state.isr, *state.elr))


def is_held_elsewhere(broker_id: int, image: MetadataImage, topic_partition: TopicPartition) -> bool:
    """Whether other replicas have all records of a partition, so that they complete a log which lacks some."""
    topic = image.topic(topic_partition.topic)
    if topic is None or topic_partition.partition >= len(topic.partitions):
        return False
    return not _is_only_replica(broker_id, topic.partitions[topic_partition.partition])


def is_moved_away(broker_id: int, topic: TopicImage | None, index: int, log: Log) -> bool:
    """Whether a log may be deleted because the replicas of its partition are on other brokers now.

    The metadata must know the topic by its id, and be newer than the log: what an old copy of them says deletes
    nothing. A replica leaves in a new leader epoch: a log with records of that epoch was assigned again.
    """
    if topic is None or log.topic_id != topic.topic_id or index >= len(topic.partitions):
        return False
    state = topic.partitions[index]
    return broker_id not in state.replicas and log.leader_epochs.latest < state.leader_epoch


def replicas_of(broker_id: int, image: MetadataImage) -> Iterator[TopicPartition]:
    """Return the partitions that have a replica on a broker."""
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            if broker_id in state.replicas:
                yield TopicPartition(topic.name, index)


def directories_of(broker_id: int, image: MetadataImage) -> Mapping[TopicPartition, str]:
    """Return the ids of the log folders that the metadata name for the replicas of a broker."""
    return {
        TopicPartition(topic.name, index): directory
        for topic in image.topics.values()
        for index, state in enumerate(topic.partitions)
        if broker_id in state.replicas and (directory := state.directory_of(broker_id))
    }
