"""One partition on this broker; pure: it decides, the replica manager acts."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition


class PartitionLog(Protocol):
    """The properties of a log that a partition uses."""

    log_start_offset: int
    log_end_offset: int

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the first offset of the first transaction that is ongoing or ends at or above the high watermark."""


LogT = TypeVar("LogT", bound=PartitionLog)

#: Leader epoch of a client that does not know it (KIP-320).
NO_LEADER_EPOCH = -1


class Partition(Generic[LogT]):
    """Leadership, in-sync replicas and high watermark of one partition.

    Invariants: the high watermark is at most the log end offset of every in-sync replica and never falls while this
    broker leads; leader and partition epochs never fall.
    """

    __slots__ = (
        "broker_id",
        "high_watermark",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "replicas",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, broker_id: int, log: LogT) -> None:
        self.topic_partition = topic_partition
        self.broker_id = broker_id
        self.log = log
        self.leader_id = -1
        self.leader_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.high_watermark = log.log_start_offset

    def update(self, leader_id: int, leader_epoch: int, replicas: Sequence[int], isr: Sequence[int]) -> bool:
        """Apply the controller's state; a state of an older leader epoch is ignored.

        Returns whether readers are affected: the leader, its epoch or the high watermark changed.
        """
        if leader_epoch < self.leader_epoch:
            return False
        has_changed = (leader_id, leader_epoch) != (self.leader_id, self.leader_epoch)
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        if self.is_leader and self.advance_high_watermark():
            has_changed = True
        return has_changed

    @property
    def is_leader(self) -> bool:
        """Whether this broker is the leader."""
        return self.leader_id == self.broker_id

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Check that this broker leads in the epoch of the request (KIP-320).

        Raises:
            KafkaError: not_leader_or_follower, fenced_leader_epoch, unknown_leader_epoch.
        """
        if self.leader_id != self.broker_id:
            raise KafkaError(
                ErrorCode.not_leader_or_follower, f"{self.topic_partition} is led by broker {self.leader_id}"
            )
        if current_leader_epoch not in (NO_LEADER_EPOCH, self.leader_epoch):
            stale = current_leader_epoch < self.leader_epoch
            raise KafkaError(
                ErrorCode.fenced_leader_epoch if stale else ErrorCode.unknown_leader_epoch,
                f"{self.topic_partition} is in leader epoch {self.leader_epoch}, the request in {current_leader_epoch}",
            )

    def check_enough_in_sync(self, min_insync_replicas: int) -> None:
        """Check that a write with acks=all can be acknowledged.

        Raises:
            KafkaError: not_enough_replicas.
        """
        if len(self.isr) < min_insync_replicas:
            raise KafkaError(
                ErrorCode.not_enough_replicas,
                f"{self.topic_partition} has {len(self.isr)} in-sync replicas, "
                f"min.insync.replicas is {min_insync_replicas}",
            )

    def advance_high_watermark(self) -> bool:
        """Raise the high watermark to the offset that all in-sync replicas have; return whether it rose.

        This broker is the only in-sync replica: a topic cannot be created with more replicas than brokers.
        """
        end = self.log.log_end_offset
        if end > self.high_watermark:
            self.high_watermark = end
            return True
        return False

    @property
    def last_stable_offset(self) -> int:
        """End of the records visible to read_committed consumers; at most the high watermark."""
        return self.log.last_stable_offset(self.high_watermark)
