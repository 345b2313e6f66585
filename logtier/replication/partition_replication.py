"""The shell of the partitions' state machines: brings them events, and carries out what they decide."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, assert_never

from headwater.logtier.log.log import Log
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata.image import MetadataDelta, MetadataImage
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.fetch_response import FetchedPartition, TaggedPartition
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.acknowledgements import Acknowledgements
from headwater.logtier.replication.flush_wait import wait_flushed
from headwater.logtier.replication.local_replicas import LocalReplicas
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_instructions import (
    Instructions,
    IsrBelowMinimum,
    IsrDecision,
    LeaderFence,
    LeadershipMoved,
    LowWatermarkMoved,
    ProposeIsr,
    StoredPartition,
    WatermarkMoved,
)
from headwater.logtier.replication.partition_reads import FetchingFollower, FetchPartition
from headwater.logtier.replication.purgatory import CallLater, Purgatory, Timer
from headwater.logtier.replication.watermark_checkpoints import WatermarkCheckpoints
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.completed import completed

logger = logging.getLogger(__name__)

#: Shortest interval of the ticks, which look at every replicated partition, for any config.
TICK_MS_MIN: Final = 100


def no_followers(proposal: ProposeIsr) -> None:
    """The sink of ISR proposals on a single node, whose partitions have no followers."""
    raise AssertionError(f"a single node proposes an ISR: {proposal}")


class PartitionReplication:
    """Leaders and followers of this broker's partitions. Called from the event loop only.

    Invariant: ticks run while any partition has a replica on another broker; a single node has no ticks and writes no
    watermarks. The replica manager owns it and tells it which partitions there are; fetches, the controller's answers
    and time come from the broker.
    """

    def __init__(
        self,
        replicas: LocalReplicas,
        log_manager: LogManager,
        clock: Clock,
        call_later: CallLater,
        propose_isr: Callable[[ProposeIsr], None],
    ) -> None:
        """`propose_isr` asks the controller for another ISR; the answer goes to `isr_decided`."""
        self._replicas = replicas
        self._log_manager = log_manager
        self._clock = clock
        self._call_later = call_later
        self._propose_isr = propose_isr
        #: The fetches that wait for records.
        self.delayed_fetches = Purgatory(call_later)
        #: The produces and deletions that wait for followers.
        self.acknowledgements = Acknowledgements(replicas, call_later)
        self._checkpoints = WatermarkCheckpoints(log_manager)
        #: Epochs of the brokers that are neither fenced nor shutting down.
        self._live_brokers: Mapping[int, int] = {}
        #: The partitions with replicas on other brokers.
        self._replicated: dict[TopicPartition, Partition[Log]] = {}
        #: Those among them that this broker leads; only this object changes them.
        self.followed: dict[TopicPartition, Partition[Log]] = {}
        #: Those that it would lead if it were not cut off from all others.
        self._cut_off: dict[TopicPartition, Partition[Log]] = {}
        self._is_fenced = False
        #: Whether the metadata store has not been heard of for long.
        self.is_store_silent: Callable[[], bool] = lambda: False
        #: Whether the session with the metadata store may have ended in a pause of this process.
        self.is_in_doubt: Callable[[], bool] = lambda: False
        #: Called after partitions were fenced, or lead again.
        self.on_fenced: Callable[[], None] = lambda: None
        self._ticking: Timer | None = None
        self._is_stopped = False

    def start(self, image: MetadataImage) -> None:
        """Read the checkpoints, once logs of no replica are gone, before the first partition is created."""
        self._checkpoints.read()
        self._live_brokers = _epochs(image)

    def stop(self) -> None:
        """Write the high watermarks for the next start, before the logs are closed; the image may still change."""
        self._is_stopped = True
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        self._checkpoints.close(self._replicated.values())

    # -- events

    def new_partition(self, topic_partition: TopicPartition, broker_id: int, log: Log) -> Partition[Log]:
        """Create the state machine of a replica whose log is usable, with its checkpointed high watermark."""
        partition = Partition(
            topic_partition,
            broker_id,
            log,
            high_watermark=self._checkpoints.take(topic_partition),
            lag_ms_max=self._log_manager.config.replica_lag_time_max_ms,
        )
        if self._is_fenced:
            partition.fence(LeaderFence.SESSION_OVER)
        return partition

    def lead(self, partition: Partition[Log], stored: StoredPartition, now_ms: int) -> None:
        """Apply a partition's state in the metadata; this broker may lead it, follow, or neither."""
        self.perform(partition, partition.leadership(stored, self._live_brokers, now_ms))
        key = partition.topic_partition
        if len(partition.replicas) > 1:
            self._replicated[key] = partition
            if self._ticking is None and not self._is_stopped:
                self._ticking = self._call_later(self._tick_s, self._tick)
        elif self._replicated:
            self._replicated.pop(key, None)
        self._note_leadership(partition)

    def _note_leadership(self, partition: Partition[Log]) -> None:
        """Note whether a partition is led here and has followers, after a change of that."""
        key = partition.topic_partition
        if partition.has_followers:
            self.followed[key] = partition
            self._note_epoch(partition)
        elif self.followed:
            self.followed.pop(key, None)

    def _note_epoch(self, partition: Partition[Log]) -> None:
        """Record where the leader's epoch begins, before its first record: followers may ask for it (KIP-101).

        An empty log that begins at 0 records it with its first batch. The last step of a change of the leadership: a
        disk error may take the log's folder offline.
        """
        log = partition.log
        if partition.leader_epoch > log.leader_epochs.latest and log.log_end_offset > 0:
            try:
                log.begin_epoch(partition.leader_epoch, log.log_end_offset)
            except KafkaError as error:
                logger.error("the leader epoch begins with its first batch: %s", error)

    def forget(self, topic_partition: TopicPartition) -> bool:
        """Note that a replica is gone or its log unusable; return whether other brokers have replicas."""
        self.followed.pop(topic_partition, None)
        self._cut_off.pop(topic_partition, None)
        return self._replicated.pop(topic_partition, None) is not None

    def remove_watermarks(self) -> None:
        """Remove the checkpointed watermarks of replicas that are gone, before their logs are."""
        self._checkpoints.remove(self._replicated.values())

    def follow_brokers(self, delta: MetadataDelta) -> None:
        """Note which brokers came and went, before the change of their partitions is applied."""
        if delta.new.brokers is delta.old.brokers:
            return
        self._live_brokers = _epochs(delta.new)
        now_ms = self._clock.monotonic_ms()
        for partition in list(self.followed.values()):
            self.perform(partition, partition.live_brokers_changed(self._live_brokers, now_ms))

    def follower_fetched(
        self,
        topic_partition: TopicPartition,
        broker_id: int,
        *,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int,
    ) -> None:
        """Note the fetch of a follower after its records were read without an error.

        Raises:
            KafkaError: unknown_topic_or_partition, kafka_storage_error, not_leader_or_follower, unknown_leader_epoch.
        """
        partition = self._replicas.partition(topic_partition)
        instructions = partition.fetched(
            broker_id,
            fetch_offset=fetch_offset,
            log_start_offset=log_start_offset,
            broker_epoch=broker_epoch,
            now_ms=self._clock.monotonic_ms(),
        )
        self.perform(partition, instructions)

    def note_follower(
        self, follower: FetchingFollower, wanted: Sequence[FetchPartition], fetched: list[FetchedPartition]
    ) -> None:
        """Note a follower's fetch, just read: of each partition without an error, whether or not it has records.

        A partition that refuses the follower gets the error; the others get the high watermark after the fetch.
        """
        for place, each in enumerate(wanted):
            found = fetched[place]
            if found.error_code or isinstance(found, TaggedPartition):
                continue
            key = each.topic_partition
            try:
                self.follower_fetched(
                    key,
                    follower.broker_id,
                    fetch_offset=each.offset,
                    log_start_offset=each.follower_start_offset,
                    broker_epoch=follower.broker_epoch,
                )
                found.high_watermark = self._replicas.partition(key).high_watermark
            except KafkaError as error:
                fetched[place] = FetchedPartition(key.partition, error.code)

    def fence(self) -> None:
        """Lead no partition, and serve no consumer, until `unfence`: the session with the metadata store is over.

        Waiting requests are refused; clients look for the new leaders.
        """
        self._is_fenced = True
        partitions = list(self._replicas.online.values())
        # All of them first: a waiting fetch of several is answered as soon as one of them is fenced.
        fenced = [(partition, partition.fence(LeaderFence.SESSION_OVER)) for partition in partitions]
        self._change_fences(fenced)
        for partition in partitions:  # those that are led elsewhere serve consumers as well
            self.delayed_fetches.check(partition.topic_partition)

    def unfence(self) -> None:
        """Lead what the newest metadata says: this broker is registered again, and no partition is cut off."""
        self._is_fenced = False
        self._lead_again(self._replicas.online, LeaderFence.SESSION_OVER | LeaderFence.CUT_OFF)

    def store_heard(self) -> None:
        """Lead the partitions again that were cut off: the metadata store answers in the same session."""
        if self._cut_off:
            self._lead_again(self._cut_off, LeaderFence.CUT_OFF)

    @property
    def has_cut_off(self) -> bool:
        """Whether partitions are fenced until a follower or the metadata store is heard of."""
        return bool(self._cut_off)

    def follower_heard(self, follower: FetchingFollower, wanted: Sequence[FetchPartition]) -> None:
        """Lead those partitions again of which a member of the ISR is about to fetch."""
        if not self._cut_off:
            return
        before = len(self._cut_off)
        for each in wanted:
            partition = self._cut_off.get(each.topic_partition)
            if partition is not None:
                now_ms = self._clock.monotonic_ms()
                self._change_fence(partition, partition.heard(follower.broker_id, each.leader_epoch, now_ms))
        if len(self._cut_off) != before:
            self.on_fenced()

    def _lead_again(self, partitions: Mapping[TopicPartition, Partition[Log]], reason: LeaderFence) -> None:
        now_ms = self._clock.monotonic_ms()
        # All of them first: an error of one must not keep the others fenced.
        unfenced = [(partition, partition.unfence(reason, now_ms)) for partition in partitions.values()]
        self._change_fences(unfenced)

    def _change_fences(self, decided: Sequence[tuple[Partition[Log], Instructions]]) -> None:
        for partition, instructions in decided:
            key = partition.topic_partition
            if self._replicas.online.get(key) is not partition:
                continue  # an error of the disk, at one of those before, has taken its folder offline
            try:
                self._change_fence(partition, instructions)
            except Exception:
                logger.exception("the requests that wait for %s may wait on", key)
        self.on_fenced()

    def _change_fence(self, partition: Partition[Log], instructions: Instructions) -> None:
        """Carry out what a partition decided when it was fenced, or leads again."""
        if not partition.is_fenced:
            self._cut_off.pop(partition.topic_partition, None)
        self._note_leadership(partition)
        self.perform(partition, instructions)

    def isr_decided(self, proposal: ProposeIsr, decision: IsrDecision) -> None:
        """Apply the controller's answer to a proposal; of a replica that is gone it is ignored."""
        partition = self._replicas.online.get(proposal.topic_partition)
        if partition is not None:
            self.perform(partition, partition.isr_decided(proposal, decision))

    async def settle_truncations(self, logs: Sequence[Log]) -> list[Log]:
        """Wait until truncated logs, their recovery points and their watermarks are on the device.

        Returns:
            The logs of which they are; errors are logged.
        """
        flushes = [log.durability.request() for log in logs]
        self._checkpoints.write(self._replicated.values())
        writes = [*self._log_manager.flusher.checkpoint_now(), *self._checkpoints.running]
        errors = [await wait_flushed(flush) for flush in flushes]
        try:
            for write in writes:
                await completed(write)
        except OSError as error:
            logger.error("the checkpoints of truncated logs cannot be written: %s", error)
            return []
        return [log for log, error in zip(logs, errors, strict=True) if error is None]

    def _tick(self) -> None:
        self._ticking = self._call_later(self._tick_s, self._tick) if self._replicated else None
        now_ms = self._clock.monotonic_ms()
        is_store_silent = self.is_store_silent()
        cut_off = []
        for partition in list(self.followed.values()):
            instructions = partition.tick(now_ms, is_store_silent=is_store_silent)
            if partition.is_fenced:
                cut_off.append(partition)
                self._cut_off[partition.topic_partition] = partition
                self._note_leadership(partition)
            self.perform(partition, instructions)
        if cut_off:
            logger.warning(
                "this broker leads %d partitions no more, such as %s: it hears neither the metadata store nor any "
                "other member of their ISRs",
                len(cut_off),
                cut_off[0].topic_partition,
            )
            self.on_fenced()
        self._checkpoints.write(self._replicated.values())

    @property
    def _tick_s(self) -> float:
        """Half the lag time, as in Kafka, and at most the interval of the watermark checkpoints."""
        config = self._log_manager.config
        interval_ms = config.replica_high_watermark_checkpoint_interval_ms
        return max(min(config.replica_lag_time_max_ms // 2, interval_ms), TICK_MS_MIN) / 1000

    # -- instructions

    def perform(self, partition: Partition[Log], instructions: Instructions) -> None:
        """Carry out what a partition decided."""
        key = partition.topic_partition
        for instruction in instructions:
            match instruction:
                case WatermarkMoved(high_watermark):
                    partition.log.producers.settle(high_watermark)
                    self.delayed_fetches.check(key)
                    self.acknowledgements.check(key)
                case IsrBelowMinimum():
                    self.acknowledgements.check(key)
                case LowWatermarkMoved():
                    self.acknowledgements.check_deletions(key)
                case LeadershipMoved():
                    self.check_all(key)
                case ProposeIsr():
                    self._propose_isr(instruction)
                case _:
                    assert_never(instruction)

    def check_all(self, topic_partition: TopicPartition) -> None:
        """Check the requests that wait for a partition after a change of its leadership or its removal."""
        self.delayed_fetches.check(topic_partition)
        self.acknowledgements.check(topic_partition)
        self.acknowledgements.check_deletions(topic_partition)

    def check_soon(self, topic_partition: TopicPartition) -> None:
        """Check them in a later turn of the event loop, since the caller may be part of one of them."""
        self.delayed_fetches.check_soon(topic_partition)
        self.acknowledgements.check_soon(topic_partition)


def _epochs(image: MetadataImage) -> Mapping[int, int]:
    """Return the epochs of the registered brokers."""
    return {broker_id: registration.epoch for broker_id, registration in image.brokers.items()}
