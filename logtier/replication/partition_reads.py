"""Reads the partitions of a fetch within its limits and its isolation level."""

import logging
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from headwater.logtier.log.log import Log
from headwater.logtier.log.segments.transaction_index import AbortedTransaction
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.fetch_response import FetchedPartition, TaggedPartition
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import CorruptRecordsError
from headwater.logtier.replication.cold_reads import ColdRead
from headwater.logtier.replication.local_replicas import LocalReplicas
from headwater.logtier.replication.partition import NO_LEADER_EPOCH, Partition

logger = logging.getLogger(__name__)


class FetchPartition(NamedTuple):
    """The request of a fetch for one partition.

    Attributes:
        topic_id: The topic id of the request, None for a request by name.
        bytes_max: Byte limit of this partition; one whole batch is returned even if it is larger (KIP-74).
        leader_epoch: The leader epoch known to the client, -1 if unknown (KIP-320).
        error_code: An error found before reading, such as an unknown topic id.
        is_read_committed: Whether records end at the last stable offset and aborted transactions are included.
        is_of_replica: Whether a follower reads, to the log end; consumers read to the high watermark.
        last_fetched_epoch: Epoch of a follower's last record, -1 if it has none (KIP-595).
        follower_start_offset: A follower's log start offset.
        is_from_any_replica: Whether a follower may serve this consumer (KIP-392).
        preferred_read_replica: The broker that the consumer should ask instead of this leader, -1 for none.
        is_throttled: Whether a quota leaves the follower no records at present (KIP-73).
    """

    topic_partition: TopicPartition
    topic_id: UUID | None
    offset: int
    bytes_max: int
    leader_epoch: int = -1
    error_code: ErrorCode = ErrorCode.none
    is_read_committed: bool = False
    is_of_replica: bool = False
    last_fetched_epoch: int = -1
    follower_start_offset: int = -1
    is_from_any_replica: bool = False
    preferred_read_replica: int = -1
    is_throttled: bool = False

    def bound(self, partition: Partition[Log]) -> int:
        """Return the end of the records that this reader may see."""
        if self.is_read_committed:
            return partition.last_stable_offset
        return partition.log.log_end_offset if self.is_of_replica else partition.high_watermark

    def has_news(self, partition: Partition[Log] | None, before: int) -> bool:
        """Whether a partition has records or an error for this reader now; `before` was the end of its records."""
        if (
            partition is None
            or not partition.may_serve(any_replica=self.is_from_any_replica)
            or self.leader_epoch not in (NO_LEADER_EPOCH, partition.leader_epoch)
            or self.offset < partition.log.log_start_offset
        ):
            return True
        if self.is_throttled:
            return False  # its records are for a later fetch
        bound = self.bound(partition)
        # A last stable offset may rise and still not exceed the offset, after an earlier transaction ended.
        return bound < before or (bound != before and bound > self.offset)


class FetchingFollower(NamedTuple):
    """The broker of a follower's fetch.

    Attributes:
        broker_epoch: Its broker epoch, -1 if the request has none (KIP-903).
    """

    broker_id: int
    broker_epoch: int


Fetched = list[FetchedPartition]


class PartitionReads:
    """Reads partitions for fetches, without clock or waiting; an error concerns its partition alone."""

    def __init__(self, replicas: LocalReplicas) -> None:
        self._replicas = replicas
        self._partitions = replicas.online

    def partition(self, topic_partition: TopicPartition) -> Partition[Log] | None:
        """Return the local partition, None if there is none with a usable log."""
        return self._partitions.get(topic_partition)

    def stands(self, wanted: FetchPartition, answer: FetchedPartition, follower_id: int | None) -> bool:
        """Whether a partition is as it was told, and a reader at `wanted` has all its records.

        One whose follower is not in the ISR does not stand: each of its fetches may be the one with which it joins.
        """
        partition = self._partitions.get(wanted.topic_partition)
        return (
            partition is not None
            and not wanted.error_code
            and not answer.error_code
            and answer.__class__ is not TaggedPartition
            and not wanted.has_news(partition, wanted.offset)
            and answer.high_watermark == partition.high_watermark
            and answer.log_start_offset == partition.log.log_start_offset
            and (follower_id is None or follower_id in partition.isr)
        )

    def read(self, wanted: Iterable[FetchPartition], bytes_max: int, cold: list[ColdRead] | None = None) -> Fetched:
        """Read the partitions in order within `bytes_max`; the first batch is returned whole (KIP-74).

        With `cold`, reads that would wait for the device are added to it, and their results are empty.
        """
        found = []
        left = bytes_max
        nothing_yet = True
        for each in wanted:
            fetched = self.read_one(each, min(left, each.bytes_max), nothing_yet, cold)
            size = fetched.size
            if size:
                nothing_yet = False
                left = max(0, left - size)
            found.append(fetched)
        return found

    def read_one(
        self, wanted: FetchPartition, bytes_max: int, min_one_batch: bool, cold: list[ColdRead] | None = None
    ) -> FetchedPartition:
        """Read one partition; `bytes_max` is its part of the fetch's limits."""
        index = wanted.topic_partition.partition
        if wanted.error_code:
            return FetchedPartition(index, wanted.error_code)
        partition = self._partitions.get(wanted.topic_partition)
        if partition is None:
            return FetchedPartition(index, self._replicas.refusal(wanted.topic_partition).code)
        log = partition.log
        try:
            partition.check_leader(wanted.leader_epoch, or_follower=wanted.is_from_any_replica)
            high_watermark = partition.high_watermark
            last_stable_offset = partition.last_stable_offset
            if wanted.is_read_committed:
                bound = last_stable_offset
            elif wanted.is_of_replica:
                bound = log.log_end_offset
                if wanted.last_fetched_epoch >= 0:
                    diverging = partition.divergence(wanted.offset, wanted.last_fetched_epoch)
                    if diverging is not None:
                        # Without a watermark: it counts only for a log that does not diverge (KAFKA-14704).
                        return TaggedPartition(index, ErrorCode.none, diverging_epoch=diverging)
            else:
                bound = high_watermark
            aborted: list[AbortedTransaction] | None = [] if wanted.is_read_committed else None
            if wanted.offset > high_watermark and wanted.is_from_any_replica:
                partition.check_fetchable(wanted.offset)
            if wanted.preferred_read_replica >= 0:
                return _elsewhere(wanted, partition)
            if wanted.offset == bound or wanted.is_throttled or (bytes_max <= 0 and not min_one_batch):
                records = None
                if not log.log_start_offset <= wanted.offset <= log.log_end_offset:
                    raise KafkaError(ErrorCode.offset_out_of_range)
            else:
                may_wait = cold is None
                records = log.read(
                    wanted.offset, bytes_max, upper_bound_offset=bound, min_one_batch=min_one_batch, may_wait=may_wait
                )
                if aborted is not None and records.size:
                    end_offset = min(bound, log.end_of_slice(records))
                    aborted = log.aborted_transactions(wanted.offset, end_offset, may_wait=may_wait)
        except KafkaError as error:
            return FetchedPartition(index, error.code, log_start_offset=log.log_start_offset)
        except (OSError, CorruptRecordsError) as error:
            if cold is not None and isinstance(error, BlockingIOError):
                cold.append(ColdRead(log, wanted.offset, bytes_max, bound, min_one_batch, wanted.is_read_committed))
                return FetchedPartition(index, ErrorCode.none)
            # The error concerns this partition alone, and must not reach a producer that completes this fetch.
            logger.error("%s cannot be read at offset %d: %s", wanted.topic_partition, wanted.offset, error)
            damaged = isinstance(error, CorruptRecordsError)
            if isinstance(error, OSError):
                log.health.observe(f"read {log.directory}", error)
            return FetchedPartition(index, ErrorCode.corrupt_message if damaged else ErrorCode.kafka_storage_error)
        return FetchedPartition(
            index, ErrorCode.none, high_watermark, last_stable_offset, log.log_start_offset, records, aborted
        )


def _elsewhere(wanted: FetchPartition, partition: Partition[Log]) -> TaggedPartition:
    """Send a consumer to the replica that is nearest to it, without records."""
    return TaggedPartition(
        wanted.topic_partition.partition,
        ErrorCode.none,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log.log_start_offset,
        preferred_read_replica=wanted.preferred_read_replica,
    )
