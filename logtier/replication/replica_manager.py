"""The partitions of this broker: appends, reads, and changes of the metadata."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.appending.recompression import PRODUCER
from headwater.logtier.log.durability import FlushRound
from headwater.logtier.log.folders.folder_work import NewLog
from headwater.logtier.log.log import AppendInfo, Log, LogSlice
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.log.producers.producer_state import Verification
from headwater.logtier.metadata.image import MetadataDelta, MetadataImage, TopicImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.fetch_response import RecordSlice
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Buffer
from headwater.logtier.replication.acknowledgements import ReplicationWait
from headwater.logtier.replication.fetches import Fetches
from headwater.logtier.replication.local_replicas import LocalReplicas, ReplicaState
from headwater.logtier.replication.log_assignment import is_log_of_replica, is_moved_away, replicas_of
from headwater.logtier.replication.log_dirs import LogDirs
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_instructions import ProposeIsr
from headwater.logtier.replication.partition_reads import PartitionReads
from headwater.logtier.replication.partition_replication import PartitionReplication, no_followers
from headwater.logtier.replication.purgatory import CallLater
from headwater.logtier.replication.replication_throttles import ReplicationThrottles
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.read_ahead import ReadAhead

logger = logging.getLogger(__name__)

#: Offset of DeleteRecords for the high watermark.
HIGH_WATERMARK: Final = -1


class ReplicaManager:
    """All replicas of this broker.

    Called from the event loop only. Appends and reads are synchronous and use the page cache. Invariant: after `start`
    there is a partition for each replica that the metadata image assigns to this broker, and no other log on disk.
    """

    def __init__(
        self,
        broker_id: int,
        topic_config: Callable[[TopicImage], TopicConfig],
        log_manager: LogManager,
        clock: Clock,
        call_later: CallLater,
        read_ahead: ReadAhead | None = None,
        propose_isr: Callable[[ProposeIsr], None] = no_followers,
    ) -> None:
        """Create the manager; `start` takes over the logs.

        Args:
            read_ahead: Without it, look-ups of fetches may wait for the device.
            propose_isr: Asks the controller for another ISR; the answer goes to `partition_replication`.
        """
        self._broker_id = broker_id
        self._topic_config = topic_config
        self._log_manager = log_manager
        self._clock = clock
        self._replicas = LocalReplicas()
        self._online = self._replicas.online
        self._reads = PartitionReads(self._replicas)
        #: Leaders and followers: events from outside, and what partitions decide.
        self.partition_replication = PartitionReplication(self._replicas, log_manager, clock, call_later, propose_isr)
        self._delayed_fetches = self.partition_replication.delayed_fetches
        #: The partitions led here with replicas on other brokers, for which appends with acks=all wait: a live view.
        self.followed = self.partition_replication.followed
        # Only one task creates logs outside the event loop at a time.
        self._making = asyncio.Lock()
        #: Topics with a codec (`compression.type` other than producer).
        self.recompressing_topics: set[str] = set()
        #: Topics whose records must have keys (`cleanup.policy`).
        self.compacted_topics: set[str] = set()
        #: The quotas of throttled replicas.
        self.throttles = ReplicationThrottles(broker_id)
        log_manager.on_offline = self._take_offline
        #: Fetches of several partitions, which may wait.
        self.fetches = Fetches(self._reads, self.partition_replication, self.throttles, clock, read_ahead)
        #: The log folders, and moves between them.
        self.log_dirs = LogDirs(log_manager, self, clock)

    def start(self, image: MetadataImage) -> None:
        """Take over the logs on disk that the image knows.

        Those of deleted topics are deleted, and those of partitions that were moved to other brokers. Other logs are
        set aside with their files (as Kafka's stray logs): they may be of topics created after the backup from which
        the metadata was restored.
        """
        known = self._replicas.topics = image.topics
        for topic_partition, log in list(self._log_manager.logs.items()):
            topic = known.get(topic_partition.topic)
            if not is_log_of_replica(self._broker_id, topic, topic_partition.partition, log):
                is_moved = is_moved_away(self._broker_id, topic, topic_partition.partition, log)
                if is_moved or image.is_deleted(log.topic_id):
                    reason = "its partition is on other brokers now" if is_moved else "its topic was deleted"
                    logger.info("log %s is deleted: %s", topic_partition, reason)
                    self._log_manager.delete(topic_partition)
                else:
                    self._set_aside(topic_partition)
        self.partition_replication.start(image)
        if not all(directory.is_online for directory in self._log_manager.directories):
            # A missing log may be in an offline folder: an empty log must not replace it.
            logs = self._log_manager.logs
            self._replicas.set_offline(key for key in replicas_of(self._broker_id, image) if key not in logs)
        for topic in known.values():
            try:
                self._apply_topic(topic)
            except OSError as error:
                logger.error("topic %s has partitions without a log: %s", topic.name, error)

    def apply(self, delta: MetadataDelta) -> None:
        """Apply a change of the metadata: create, reconfigure and delete local logs.

        A log that cannot be created does not prevent the others: the first error is raised at the end.

        Raises:
            OSError: A log cannot be created.
        """
        self._replicas.topics = delta.new.topics
        self.partition_replication.follow_brokers(delta)
        for topic in delta.deleted:
            self.recompressing_topics.discard(topic.name)
            self.compacted_topics.discard(topic.name)
            self.throttles.forget(topic.name)
        gone = [
            (TopicPartition(topic.name, index), delta.new.is_deleted(topic.topic_id))
            for topic in delta.deleted
            for index in range(len(topic.partitions))
        ]
        self._remove([key for key, is_deleted in gone if is_deleted])
        # Nobody has deleted these: the metadata were emptied or restored under a running broker.
        self._remove([key for key, is_deleted in gone if not is_deleted], keep_files=True)
        first_error: OSError | None = None
        for topic in (*delta.created, *delta.changed):
            try:
                self._apply_topic(topic)
            except OSError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    async def prepare(self, delta: MetadataDelta) -> None:
        """Create the logs of a metadata change outside the event loop, for `apply` to take over."""
        wanted = []
        for topic in (*delta.created, *delta.changed):
            config = self._topic_config(topic)
            for index, state in enumerate(topic.partitions):
                key = TopicPartition(topic.name, index)
                if self._broker_id in state.replicas and self._replicas.state(key) in (None, ReplicaState.MISSING):
                    wanted.append(NewLog(key, topic.topic_id, config))
        if wanted:
            async with self._making:
                await self._log_manager.make(wanted)

    @property
    def has_missing(self) -> bool:
        """Whether a log could not be created yet."""
        return bool(self._replicas.missing)

    async def make_missing_logs(self) -> bool:
        """Retry the creation of missing logs, for example after a full disk; return whether all exist."""
        missing = self._replicas.missing
        if not missing:
            return True
        async with self._making:
            await self._log_manager.make(
                [NewLog(key, topic.topic_id, self._topic_config(topic)) for key, topic in missing.items()]
            )
            # Only topics that still have missing logs: a topic may have been deleted meanwhile.
            for topic in {topic.name: topic for topic in missing.values()}.values():
                try:
                    self._apply_topic(topic)
                except OSError as error:
                    logger.error("topic %s has partitions without a log: %s", topic.name, error)
                else:
                    logger.info("topic %s has all its logs now", topic.name)
            self._log_manager.discard_made()
        return not missing

    @property
    def has_offline(self) -> bool:
        """Whether the log of any partition is in an offline folder."""
        return self._replicas.offline_count > 0

    def offline_replicas(self, topic: str, partition: int) -> tuple[int, ...]:
        """Return the brokers whose log of a partition is in an offline folder: this broker, or none."""
        is_offline = self.has_offline and self.is_offline(TopicPartition(topic, partition))
        return (self._broker_id,) if is_offline else ()

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether the log of a partition is in an offline folder."""
        return self._replicas.state(topic_partition) is ReplicaState.OFFLINE

    def replace_log(self, topic_partition: TopicPartition, log: Log) -> None:
        """Replace the log of a partition by its copy on another disk."""
        self.partition(topic_partition).log = log

    def partition(self, topic_partition: TopicPartition) -> Partition[Log]:
        """Return the local partition.

        Raises:
            KafkaError: unknown_topic_or_partition, not_leader_or_follower, kafka_storage_error.
        """
        return self._replicas.partition(topic_partition)

    def usable_partition(self, topic_partition: TopicPartition) -> Partition[Log] | None:
        """Return the local partition, None if there is none with a usable log."""
        return self._online.get(topic_partition)

    @property
    def unusable_partitions(self) -> int:
        """Number of replicas without a usable log: in an offline folder, or not created because of a disk error."""
        return self._replicas.unusable_count

    @property
    def delayed_operations(self) -> int:
        """Number of requests that wait for a change of a partition."""
        return len(self._delayed_fetches) + len(self.partition_replication.acknowledgements)

    def log(self, topic_partition: TopicPartition) -> Log:
        """Return the local log of a partition.

        Raises:
            KafkaError: unknown_topic_or_partition, kafka_storage_error.
        """
        return self.partition(topic_partition).log

    def high_watermark(self, topic_partition: TopicPartition) -> int:
        """Return the high watermark of a partition; 0 without a usable replica, so that nothing of it is deleted."""
        partition = self._online.get(topic_partition)
        return 0 if partition is None else partition.high_watermark

    def leader_partitions(self, topic: str) -> list[int]:
        """Return the sorted indexes of a topic's partitions that this broker leads."""
        return sorted(
            key.partition for key, partition in self._online.items() if key.topic == topic and partition.is_leader
        )

    def append(
        self,
        topic_partition: TopicPartition,
        records: Buffer,
        *,
        acks: int = 1,
        now_ms: int | None = None,
        verification: Verification | None = None,
        is_coordinator: bool = False,
    ) -> AppendInfo:
        """Append record batches as the leader and complete waiting fetches.

        Args:
            acks: -1 also requires enough in-sync replicas.
            verification: The result of `begin_verification`, after the coordinator confirmed the transaction.
            is_coordinator: Whether a coordinator writes for a producer, without sequence numbers.

        Raises:
            KafkaError: unknown_topic_or_partition, not_leader_or_follower, not_enough_replicas, and errors of the log.
        """
        partition = self._online.get(topic_partition)
        if partition is None:
            raise self._replicas.refusal(topic_partition)
        if partition.leader_id != self._broker_id:
            partition.check_leader()
        if self.partition_replication.is_in_doubt():
            raise _doubted(topic_partition)
        if acks == -1:
            partition.check_enough_in_sync()
        info = partition.log.append_as_leader(
            records,
            leader_epoch=partition.leader_epoch,
            now_ms=self._clock.now_ms() if now_ms is None else now_ms,
            verification=verification,
            is_coordinator=is_coordinator,
        )
        # Followers read to the log end, whether or not the high watermark moves.
        if partition.appended() or partition.has_followers:
            self._delayed_fetches.check(topic_partition)
        return info

    def takes_any_sequence(self, topic_partition: TopicPartition, producer_id: int) -> bool:
        """Whether this broker leads a partition whose log does not know a producer, nor its next sequence number."""
        partition = self._online.get(topic_partition)
        if partition is None or partition.leader_id != self._broker_id or self.partition_replication.is_in_doubt():
            return False
        return partition.log.producers.get(producer_id) is None

    def begin_verification(
        self,
        topic_partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        is_epoch_bumped: bool,
    ) -> Verification | None:
        """Begin the verification of a transactional batch; None if its transaction is ongoing in the partition.

        The caller verifies with the transaction coordinator that the transaction includes the partition, and then
        passes the result to `append` (KIP-890).

        Args:
            base_sequence: -1 for a batch of a coordinator.
            is_epoch_bumped: Whether each of the producer's transactions has its own epoch (transaction.version 2).

        Raises:
            KafkaError: unknown_topic_or_partition, not_leader_or_follower, invalid_producer_epoch.
        """
        partition = self.partition(topic_partition)
        partition.check_leader()
        return partition.log.producers.begin_verification(
            producer_id, producer_epoch, base_sequence, self._clock.now_ms(), is_epoch_bumped=is_epoch_bumped
        )

    def append_end_txn_marker(
        self,
        topic_partition: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> AppendInfo:
        """Append the marker that ends a producer's transaction; completes waiting read_committed fetches.

        From transaction.version 2 on, the epoch is that of the producer's next transaction, which a late marker cannot
        end. A repeated marker appends nothing (`duplicate`).

        Raises:
            KafkaError: unknown_topic_or_partition, not_leader_or_follower, not_enough_replicas, invalid_producer_epoch,
                transaction_coordinator_fenced, kafka_storage_error.
        """
        partition = self.partition(topic_partition)
        partition.check_leader()
        if self.partition_replication.is_in_doubt():
            raise _doubted(topic_partition)
        log = partition.log
        partition.check_enough_in_sync()
        info = log.append_end_txn_marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            committed=commit,
            transaction_version=transaction_version,
            leader_epoch=partition.leader_epoch,
            now_ms=self._clock.now_ms(),
        )
        has_advanced = partition.appended()
        log.producers.settle(partition.high_watermark)
        if has_advanced or partition.has_followers:
            self._delayed_fetches.check(topic_partition)
        return info

    def acknowledgement(
        self, appends: Sequence[tuple[TopicPartition, AppendInfo]], timeout_ms: int, *, acks: int
    ) -> ReplicationWait | None:
        """Return the wait until appends just made can be acknowledged; None if they can be now.

        Its errors: request_timed_out, not_leader_or_follower, not_enough_replicas_after_append, kafka_storage_error,
        unknown_topic_or_partition.

        Args:
            acks: With -1 each append waits for the in-sync replicas, otherwise only for its sync (flush.messages).
        """
        return self.partition_replication.acknowledgements.of_appends(appends, timeout_ms, acks=acks)

    def replication(
        self, topic_partition: TopicPartition, info: AppendInfo, timeout_ms: int
    ) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that waits until an append just made with acks=all is replicated; None if it is.

        The coroutine raises the errors of `acknowledgement`.
        """
        if self._is_replicated(topic_partition, info.last_offset, info.flush):
            return None
        wait = self.acknowledgement([(topic_partition, info)], timeout_ms, acks=-1)
        return None if wait is None else wait.first()

    def commitment(
        self, topic_partition: TopicPartition, last_offset: int, flush: FlushRound | None = None
    ) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Return what waits until the leader's records up to an offset are committed; None if they are.

        The wait has no timeout: it ends when the high watermark has passed the offset, or with this leadership.

        Args:
            flush: The sync of the records (flush.messages), for which it waits, too.

        Raises:
            KafkaError: from the wait: not_leader_or_follower, kafka_storage_error, unknown_topic_or_partition.
        """
        if self._is_replicated(topic_partition, last_offset, flush):
            return None
        wait = self.partition_replication.acknowledgements.of_commitment(topic_partition, last_offset, flush)
        return None if wait is None else wait.first

    def _is_replicated(self, topic_partition: TopicPartition, last_offset: int, flush: FlushRound | None) -> bool:
        """Whether the leader's records up to an offset are committed, and no sync is awaited."""
        if flush is not None:
            return False
        partition = self._online.get(topic_partition)
        return partition is not None and partition.is_leader and partition.high_watermark > last_offset

    def delete_records(self, topic_partition: TopicPartition, offset: int) -> int:
        """Raise the log start offset to `offset`, -1 for the high watermark; return it. See `deletions`.

        Raises:
            KafkaError: unknown_topic_or_partition, not_leader_or_follower, offset_out_of_range (above the high
                watermark), policy_violation (a cleanup.policy without delete).
        """
        partition = self.partition(topic_partition)
        partition.check_leader()
        log = partition.log
        if "delete" not in log.config.cleanup_policy:
            raise KafkaError(ErrorCode.policy_violation, f"{topic_partition} has a cleanup.policy without delete")
        if offset == HIGH_WATERMARK:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{topic_partition}: offset {offset} is not within 0..{partition.high_watermark}, the high watermark",
            )
        log.delete_records_before(offset, partition.high_watermark)
        self._delayed_fetches.check(topic_partition)
        return offset

    def deletions(self, deletions: Sequence[tuple[TopicPartition, int]], timeout_ms: int) -> ReplicationWait | None:
        """Return the wait until each partition's live replicas all begin at its offset or later; None if all do.

        Its errors: request_timed_out, not_leader_or_follower, kafka_storage_error, unknown_topic_or_partition.
        """
        return self.partition_replication.acknowledgements.of_deletions(deletions, timeout_ms)

    def read(
        self, topic_partition: TopicPartition, offset: int, bytes_max: int, *, min_one_batch: bool = True
    ) -> LogSlice:
        """Return whole batches from `offset` up to the high watermark.

        Raises:
            KafkaError: unknown_topic_or_partition, not_leader_or_follower, offset_out_of_range.
        """
        partition = self.partition(topic_partition)
        partition.check_leader()
        return partition.log.read(
            offset, bytes_max, upper_bound_offset=partition.high_watermark, min_one_batch=min_one_batch
        )

    def cannot_read(self, records: RecordSlice, error: OSError) -> None:
        """Handle a disk error while records were sent: log it, and take the folder offline if the error concerns it."""
        logger.error("%s cannot be read at byte %d: %s", records.file.path, records.position, error)
        self._log_manager.observe(records.file.path, error)

    # -- changes of the metadata

    def _apply_topic(self, topic: TopicImage) -> None:
        config = self._topic_config(topic)
        if config.compression_type == PRODUCER:
            self.recompressing_topics.discard(topic.name)
        else:
            self.recompressing_topics.add(topic.name)
        if "compact" in config.cleanup_policy:
            self.compacted_topics.add(topic.name)
        else:
            self.compacted_topics.discard(topic.name)
        self.throttles.configure(topic.name, config)
        first_error: OSError | None = None
        now_ms = self._clock.monotonic_ms()
        for index, state in enumerate(topic.partitions):
            key = TopicPartition(topic.name, index)
            partition = self._online.get(key)
            if self._broker_id not in state.replicas:
                is_moved = partition is None or is_moved_away(self._broker_id, topic, index, partition.log)
                self._remove([key], keep_files=not is_moved)
                continue
            if partition is None and self._replicas.offline_count and self.is_offline(key):
                continue
            if partition is None:
                try:
                    log = self._log_manager.create(key, topic.topic_id, config)
                except OSError as error:
                    self._replicas.set_missing(key, topic)
                    first_error = first_error or error
                    continue
                partition = self.partition_replication.new_partition(key, self._broker_id, log)
                self._replicas.set_online(key, partition)
            if partition.log.config is not config:
                partition.log.configure(config)
            self.partition_replication.lead(partition, state, now_ms)
        if first_error is not None:
            raise first_error

    def _set_aside(self, topic_partition: TopicPartition) -> None:
        logger.warning(
            "log %s belongs to no topic of the metadata: it is kept as %s; remove it if it is not needed",
            topic_partition,
            self._log_manager.set_aside(topic_partition),
        )

    def _remove(self, topic_partitions: Sequence[TopicPartition], *, keep_files: bool = False) -> None:
        gone = []
        was_replicated = False
        for topic_partition in topic_partitions:
            self.log_dirs.cancel(topic_partition)
            was_replicated |= self.partition_replication.forget(topic_partition)
            if self._replicas.remove(topic_partition):
                gone.append(topic_partition)
        if was_replicated:
            self.partition_replication.remove_watermarks()
        if keep_files:
            for topic_partition in gone:
                if topic_partition in self._log_manager.logs:
                    self._set_aside(topic_partition)
        else:
            self._log_manager.delete(*gone)
        for topic_partition in gone:
            # Waiting requests complete with an error.
            self.partition_replication.check_all(topic_partition)

    def _take_offline(self, gone: Sequence[TopicPartition]) -> None:
        """Handle a failed log folder: its partitions return KAFKA_STORAGE_ERROR, also to waiting fetches."""
        self._replicas.set_offline(topic_partition for topic_partition in gone if topic_partition in self._online)
        for topic_partition in gone:
            self.partition_replication.forget(topic_partition)
            self.partition_replication.check_soon(topic_partition)  # a read of one of them may have found the failure


def _doubted(topic_partition: TopicPartition) -> KafkaError:
    """Return the refusal of a write that the broker had begun to process before a pause; later requests wait."""
    return KafkaError(ErrorCode.not_leader_or_follower, f"{topic_partition} may be led by another broker")
