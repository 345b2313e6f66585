"""The replicas of this broker, each with its state."""

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from headwater.logtier.log.log import Log
from headwater.logtier.metadata.image import TopicImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition


class ReplicaState(Enum):
    """Whether a replica of this broker has a usable log."""

    ONLINE = auto()
    #: The log could not be created yet, for example on a full disk.
    MISSING = auto()
    #: The log is in an offline folder, until the next start or the deletion of the topic.
    OFFLINE = auto()


class LocalReplicas:
    """Every replica of this broker in one of the states of `ReplicaState`; only the replica manager changes them.

    Invariant: a replica is in `online`, or it is unusable with its reason, never both.
    """

    def __init__(self) -> None:
        self._online: dict[TopicPartition, Partition[Log]] = {}
        self._unusable: dict[TopicPartition, ReplicaState] = {}
        self._missing_topics: dict[TopicPartition, TopicImage] = {}
        #: The partitions with a usable log: a live view, for paths that must be fast.
        self.online: Mapping[TopicPartition, Partition[Log]] = self._online
        #: Replicas whose log is in an offline folder.
        self.offline_count = 0
        #: The topics of the metadata, by name.
        self.topics: Mapping[str, TopicImage] = {}

    def state(self, topic_partition: TopicPartition) -> ReplicaState | None:
        """Return the state of a replica, None if there is no such replica."""
        if topic_partition in self._online:
            return ReplicaState.ONLINE
        return self._unusable.get(topic_partition)

    def partition(self, topic_partition: TopicPartition) -> Partition[Log]:
        """Return a partition with a usable log.

        Raises:
            KafkaError: unknown_topic_or_partition, not_leader_or_follower, kafka_storage_error.
        """
        partition = self._online.get(topic_partition)
        if partition is None:
            raise self.refusal(topic_partition)
        return partition

    def refusal(self, topic_partition: TopicPartition) -> KafkaError:
        """Return the error for requests of a partition without a usable log."""
        match self._unusable.get(topic_partition):
            case ReplicaState.OFFLINE:
                reason = f"the log of {topic_partition} is in a folder that is offline"
            case ReplicaState.MISSING:
                reason = f"the log of {topic_partition} is not created yet"
            case _:
                topic = self.topics.get(topic_partition.topic)
                if topic is not None and topic_partition.partition < len(topic.partitions):
                    # Of a partition that was moved away: the client asks for its leader, as with one that it never had.
                    return KafkaError(
                        ErrorCode.not_leader_or_follower, f"this broker has no replica of {topic_partition}"
                    )
                return KafkaError(
                    ErrorCode.unknown_topic_or_partition, f"this broker has no partition {topic_partition}"
                )
        return KafkaError(ErrorCode.kafka_storage_error, reason)

    @property
    def unusable_count(self) -> int:
        """Number of replicas without a usable log."""
        return len(self._unusable)

    @property
    def missing(self) -> Mapping[TopicPartition, TopicImage]:
        """The replicas whose log is not created yet, with their topics: a live view."""
        return self._missing_topics

    def set_online(self, topic_partition: TopicPartition, partition: Partition[Log]) -> None:
        """Set the partition of a replica whose log is usable."""
        if self._unusable:
            self._forget(topic_partition)
        self._online[topic_partition] = partition

    def set_missing(self, topic_partition: TopicPartition, topic: TopicImage) -> None:
        """Note that the log of a replica cannot be created yet."""
        self._forget(topic_partition)
        self._unusable[topic_partition] = ReplicaState.MISSING
        self._missing_topics[topic_partition] = topic

    def set_offline(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Note that the log folder of replicas failed."""
        for topic_partition in topic_partitions:
            self._forget(topic_partition)
            self._unusable[topic_partition] = ReplicaState.OFFLINE
            self.offline_count += 1

    def remove(self, topic_partition: TopicPartition) -> bool:
        """Remove a replica in any state; return whether its log was usable."""
        was_online = topic_partition in self._online
        self._forget(topic_partition)
        return was_online

    def _forget(self, topic_partition: TopicPartition) -> None:
        self._online.pop(topic_partition, None)
        self._missing_topics.pop(topic_partition, None)
        if self._unusable.pop(topic_partition, None) is ReplicaState.OFFLINE:
            self.offline_count -= 1
