"""Applies the leaders' answers to the logs of followed partitions."""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto

from headwater.logtier.log.log import Log
from headwater.logtier.peers.replica_fetch import ReplicaFetchedPartition, ReplicaFetchPartition
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import HEADER, HEADER_BYTES, RecordBatchHeader
from headwater.logtier.replication.fetching.fetch_refusals import FetchRefusals
from headwater.logtier.replication.fetching.followed_partition import FollowedPartition
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_instructions import RaiseLogStart, Truncate, WatermarkMoved
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks

logger = logging.getLogger(__name__)


class AnswerOutcome(Enum):
    """What follows from an answer."""

    #: The log has its records.
    APPLIED = auto()
    #: The log ends elsewhere; it is fetched again when that is on the device.
    TRUNCATED = auto()
    #: The log begins or ends outside the leader's: its ends must be asked for.
    OUT_OF_RANGE = auto()
    #: The partition pauses.
    FAILED = auto()
    #: The answer belongs to an earlier state of the partition.
    OUTDATED = auto()


class FollowerLogs:
    """The logs that fetches change. Called from the event loop only, by the fetchers.

    Each change is synchronous and checks first that the answer still belongs to the partition: the same topic id, the
    same leader and leader epoch, and a log that ends where it was fetched. An error concerns one partition alone.

    Invariant: a truncated log gets no records before its new end, its recovery point and its watermark are on the
    device. A crash would otherwise find a recovery point above records that never reached the device.
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        clock: Clock,
        backoff_ms: Callable[[], int],
        settled: Callable[[TopicPartition], None],
    ) -> None:
        """`settled` is called when a truncated log may be fetched again."""
        self._replica_manager = replica_manager
        self._replication = replica_manager.partition_replication
        self._backoff_ms = backoff_ms
        #: What leaders refuse.
        self.refusals = FetchRefusals(clock)
        self._settled = settled
        #: The truncated logs that are not on the device yet.
        self._unsettled: dict[TopicPartition, Log] = {}
        self._is_settling = False
        self._tasks = SpawnedTasks("replica fetchers")

    def position(self, followed: FollowedPartition, bytes_max: int) -> ReplicaFetchPartition | None:
        """Return where to fetch a partition; None if it has no usable log, or this broker does not follow it."""
        partition = self._partition(followed)
        if partition is None:
            return None
        log = partition.log
        end = log.log_end_offset
        return ReplicaFetchPartition(
            followed.topic_partition.partition,
            followed.leader_epoch,
            end,
            log.leader_epochs.epoch_at(end - 1) if end > log.log_start_offset else -1,
            log.log_start_offset,
            bytes_max,
        )

    def take(
        self, followed: FollowedPartition, asked: ReplicaFetchPartition, answer: ReplicaFetchedPartition
    ) -> AnswerOutcome:
        """Apply an answer: truncate where the logs diverge, else append, then follow watermark and log start."""
        partition = self._partition(followed)
        if partition is None or partition.log.log_end_offset != asked.fetch_offset:
            return AnswerOutcome.OUTDATED
        if answer.error_code == ErrorCode.offset_out_of_range:
            return AnswerOutcome.OUT_OF_RANGE
        if answer.error_code:
            self.refusals.refused(followed, answer.error_code)
            return AnswerOutcome.FAILED
        self.refusals.fetched(followed.leader_id)
        try:
            if answer.diverging_epoch is None and answer.records:
                _append(partition.log, answer.records, followed)
                if self._replica_manager.usable_partition(followed.topic_partition) is not partition:
                    return AnswerOutcome.FAILED
            return self._perform(partition, followed, answer)
        except KafkaError as error:
            logger.error("%s cannot follow broker %d: %s", followed.topic_partition, followed.leader_id, error)
        except OSError as error:
            logger.error("%s cannot follow broker %d: %s", followed.topic_partition, followed.leader_id, error)
            partition.log.health.observe(f"write {partition.log.directory}", error)
        except Exception:
            # The other partitions of the answer have nothing to do with it.
            logger.exception("%s cannot follow broker %d", followed.topic_partition, followed.leader_id)
        return AnswerOutcome.FAILED

    def _perform(
        self, partition: Partition[Log], followed: FollowedPartition, answer: ReplicaFetchedPartition
    ) -> AnswerOutcome:
        instructions = partition.answered(
            high_watermark=answer.high_watermark,
            log_start_offset=answer.log_start_offset,
            diverging=answer.diverging_epoch,
        )
        for instruction in instructions:
            match instruction:
                case Truncate(offset):
                    return self._truncate(partition, followed, offset)
                case WatermarkMoved():
                    self._replication.perform(partition, (instruction,))
                case RaiseLogStart(offset):
                    partition.log.delete_records_before(offset, partition.high_watermark)
                    self._replication.delayed_fetches.check(partition.topic_partition)
        return AnswerOutcome.APPLIED

    def move_into(
        self, followed: FollowedPartition, asked: ReplicaFetchPartition, start_offset: int, end_offset: int
    ) -> AnswerOutcome:
        """Move a log that is out of range into the leader's, which begins and ends at these offsets."""
        partition = self._partition(followed)
        if partition is None or partition.log.log_end_offset != asked.fetch_offset:
            return AnswerOutcome.OUTDATED
        log = partition.log
        own_end = log.log_end_offset
        try:
            if own_end < start_offset or end_offset < log.log_start_offset:
                return self._restart(partition, followed, start_offset)
            if end_offset < own_end:
                return self._truncate(partition, followed, end_offset)
        except KafkaError as error:
            logger.error("%s cannot follow broker %d: %s", followed.topic_partition, followed.leader_id, error)
        # The leader's log has changed since, or its history does not reach back to the last record's epoch.
        return AnswerOutcome.FAILED

    def _truncate(self, partition: Partition[Log], followed: FollowedPartition, offset: int) -> AnswerOutcome:
        log = partition.log
        before = log.log_end_offset
        log.truncate_to(offset)
        if log.log_end_offset == before:
            logger.error("%s ends at %d, where broker %d says it diverges", log, before, followed.leader_id)
            return AnswerOutcome.FAILED
        logger.info(
            "%s ends at %d instead of %d, as the log of broker %d requires",
            followed.topic_partition,
            log.log_end_offset,
            before,
            followed.leader_id,
        )
        return self._changed_end(partition)

    def _restart(self, partition: Partition[Log], followed: FollowedPartition, offset: int) -> AnswerOutcome:
        logger.info(
            "%s begins anew at %d: the log of broker %d has no record of it", partition.log, offset, followed.leader_id
        )
        partition.log.restart_at(offset)
        return self._changed_end(partition)

    def _changed_end(self, partition: Partition[Log]) -> AnswerOutcome:
        partition.truncated()
        self._unsettled[partition.topic_partition] = partition.log
        if not self._is_settling:
            self._is_settling = True
            self._tasks.spawn(self._settle())
        return AnswerOutcome.TRUNCATED

    async def _settle(self) -> None:
        """Wait until truncated logs are on the device, those of one answer together."""
        try:
            while self._unsettled:
                await asyncio.sleep(0)  # the rest of the answer
                logs = dict(self._unsettled)
                settled = await self._replication.settle_truncations(tuple(logs.values()))
                for key, log in logs.items():
                    if self._unsettled.get(key) is log and (log in settled or self._is_gone(key, log)):
                        del self._unsettled[key]
                        self._settled(key)
                if any(self._unsettled.get(key) is log for key, log in logs.items()):
                    await asyncio.sleep(self._backoff_ms() / 1000)
        finally:
            self._is_settling = False

    def _is_gone(self, key: TopicPartition, log: Log) -> bool:
        partition = self._replica_manager.usable_partition(key)
        return partition is None or partition.log is not log

    def _partition(self, followed: FollowedPartition) -> Partition[Log] | None:
        """Return the local partition, if it is on the device and follows this leader in this epoch."""
        key = followed.topic_partition
        partition = self._replica_manager.usable_partition(key)
        if (
            partition is None
            or key in self._unsettled
            or partition.leader_id != followed.leader_id
            or partition.leader_epoch != followed.leader_epoch
            or partition.log.topic_id != followed.topic_id
        ):
            return None
        return partition

    async def aclose(self) -> None:
        """Wait for nothing any more."""
        await self._tasks.cancel()


def _append(log: Log, records: memoryview, followed: FollowedPartition) -> None:
    """Append fetched batches, checksums verified.

    An empty log may begin in the middle of the leader's first batch, after DeleteRecords: it begins with the batch.

    Raises:
        KafkaError: See `Log.append_as_follower`; corrupt_message also if there is no whole batch.
    """
    end = log.log_end_offset
    if end == log.log_start_offset and len(records) >= HEADER_BYTES:
        first = RecordBatchHeader(*HEADER.unpack_from(records))
        if first.base_offset < end <= first.last_offset:
            log.restart_at(first.base_offset)
            end = first.base_offset
    log.append_as_follower(records)
    if log.log_end_offset == end:
        raise KafkaError(ErrorCode.corrupt_message, f"broker {followed.leader_id} sent no whole batch")
