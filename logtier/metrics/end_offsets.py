"""The ends of the partitions for which groups have committed offsets; the lag is the distance to them."""

from collections.abc import Callable, Iterator
from uuid import UUID

from headwater.logtier.group.persistence.offsets import GroupOffsets
from headwater.logtier.metadata.image import MetadataCache
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.replica_manager import ReplicaManager

RemoteEnd = Callable[[TopicPartition, UUID], int | None]
"""Returns the high watermark of a topic's partition that another broker leads, None if it is not known."""


class EndOffsets:
    """High watermarks: of the leader on this broker, else of the leader's last answer to this broker.

    A follower's watermark does not count: it lags behind the leader's, or stays where it was without a leader.
    """

    def __init__(self, metadata: MetadataCache, replica_manager: ReplicaManager, remote_end: RemoteEnd) -> None:
        self._metadata = metadata
        self._replica_manager = replica_manager
        self._remote_end = remote_end

    def of(self, offsets: GroupOffsets) -> Iterator[tuple[TopicPartition, int | None]]:
        """Yield the partitions of committed offsets with their ends, None for an unknown one.

        Offsets of deleted topics, also if there is another topic of the name, are left out.
        """
        image = self._metadata.image
        for key in offsets:
            committed, topic = offsets.get(key), image.topic(key.topic)
            if committed is None or topic is None or key.partition >= len(topic.partitions):
                continue
            if committed.topic_id in (None, topic.topic_id):
                yield key, self._end(key, topic.topic_id)

    def _end(self, key: TopicPartition, topic_id: UUID) -> int | None:
        partition = self._replica_manager.usable_partition(key)
        if partition is not None and partition.is_leader:
            return partition.high_watermark
        return self._remote_end(key, topic_id)
