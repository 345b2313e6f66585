"""Throttled replication: which replicas of this broker have a quota, and what it leaves them (KIP-73). Pure.

Only replicas are held up for which no producer waits: those outside the ISR, up to the high watermark. There they are
about to join, and the watermark may wait for them. All count in the rate.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from headwater.logtier.config import TopicConfig
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.quota.replication_quota import ReplicationQuota

ALL_REPLICAS: Final = "*"


class ReplicationThrottle:
    """One side of this broker's replication, as leader or as follower: its throttled partitions, and their quota."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._quota = ReplicationQuota()
        #: Partition indexes by topic; None for all partitions.
        self._throttled: dict[str, frozenset[int] | None] = {}

    # -- events

    def change_rate(self, bytes_per_second: int, now_ms: int) -> None:
        """Set the rate of all throttled partitions together."""
        self._quota.change_rate(bytes_per_second, now_ms)

    def configure(self, topic: str, replicas: Sequence[str]) -> None:
        """Set the throttled replicas of a topic: entries `partition:broker`, or `*` for all."""
        if not replicas:
            self._throttled.pop(topic, None)
        elif ALL_REPLICAS in replicas:
            self._throttled[topic] = None
        else:
            self._throttled[topic] = frozenset(_partitions_on(self._broker_id, replicas))

    def forget(self, topic: str) -> None:
        """Note that a topic was deleted."""
        self._throttled.pop(topic, None)

    def record(self, topic_partition: TopicPartition, size: int, now_ms: int, *, is_exempt: bool) -> None:
        """Count the replicated bytes of a partition, if it is throttled; `is_exempt`: of a replica not held up."""
        if self.is_throttled(topic_partition):
            self._quota.record(size, now_ms, is_exempt=is_exempt)

    # -- questions

    @property
    def is_active(self) -> bool:
        """Whether any replica is throttled by a rate."""
        return bool(self._throttled) and self._quota.is_limited

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Whether this broker's replica of a partition is throttled."""
        if topic_partition.topic not in self._throttled:
            return False
        indexes = self._throttled[topic_partition.topic]
        return indexes is None or topic_partition.partition in indexes

    def allowance(self, now_ms: int) -> int:
        """Return the bytes that throttled partitions may replicate now; 0 while the quota is exceeded."""
        return self._quota.allowance(now_ms)

    def wait_ms(self, topic_partition: TopicPartition, now_ms: int) -> int:
        """Return the time for which a replica that is not exempt is not fetched, in ms; 0 if it is."""
        return self._quota.wait_ms(now_ms) if self.is_active and self.is_throttled(topic_partition) else 0


class ReplicationThrottles:
    """Both sides of this broker's replication. Called from the event loop only."""

    def __init__(self, broker_id: int) -> None:
        self.leader = ReplicationThrottle(broker_id)
        self.follower = ReplicationThrottle(broker_id)

    def change_rates(self, leader: int, follower: int, now_ms: int) -> None:
        """Set the rates, in bytes per second."""
        self.leader.change_rate(leader, now_ms)
        self.follower.change_rate(follower, now_ms)

    def configure(self, topic: str, config: TopicConfig) -> None:
        """Set the throttled replicas of a topic."""
        self.leader.configure(topic, config.leader_replication_throttled_replicas)
        self.follower.configure(topic, config.follower_replication_throttled_replicas)

    def forget(self, topic: str) -> None:
        """Note that a topic was deleted."""
        self.leader.forget(topic)
        self.follower.forget(topic)


def _partitions_on(broker_id: int, replicas: Sequence[str]) -> Iterable[int]:
    for entry in replicas:
        partition, _, broker = entry.partition(":")
        if int(broker) == broker_id:
            yield int(partition)
