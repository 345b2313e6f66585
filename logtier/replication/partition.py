"""One partition on this broker; pure: it decides, the replica manager acts."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition


class PartitionLog(Protocol):
    """What a partition needs to know of its log."""

    log_start_offset: int
    log_end_offset: int

    def last_stable_offset(self, high_watermark: int) -> int:
        """Where the first transaction begins that is open, or whose end is not below the high watermark."""


LogT = TypeVar("LogT", bound=PartitionLog)

#: A client that does not know the leader's epoch sends this (KIP-320).
NO_LEADER_EPOCH = -1


class Partition(Generic[LogT]):
    """Leadership, in-sync replicas and high watermark of one partition.

    Invariants: the high watermark is at most the log end offset of every in-sync replica and never goes back while this
    broker leads; leader and partition epochs never go back.
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
        """Adopt what the controller decided; a state of an older leader epoch is ignored.

        Returns whether readers can notice: the leader, its epoch or the high watermark changed.
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
        """Whether this broker leads."""
        return self.leader_id == self.broker_id

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Make sure that this broker leads in the epoch that the client believes in (KIP-320).

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
        """Make sure that a write with acks=all can be acknowledged.

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
        """Move the high watermark to what all in-sync replicas have; whether it moved.

        The in-sync replicas are this broker alone: a topic cannot be created with more replicas than there are brokers.
        """
        end = self.log.log_end_offset
        if end > self.high_watermark:
            self.high_watermark = end
            return True
        return False

    @property
    def last_stable_offset(self) -> int:
        """Where a read_committed reader stops; at most the high watermark."""
        return self.log.last_stable_offset(self.high_watermark)
