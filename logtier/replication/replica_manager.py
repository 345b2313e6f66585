"""The partitions of this broker: appends and reads go through here, and the metadata's changes arrive here."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from logtier.config import TopicConfig
from logtier.log.log import AppendInfo, Log, LogSlice
from logtier.log.log_manager import LogManager
from logtier.metadata.image import MetadataDelta, MetadataImage, TopicImage
from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.protocol.fetch_response import FetchedPartition
from logtier.protocol.topic_partition import TopicPartition
from logtier.records.batch import CorruptRecordsError
from logtier.replication.delayed_fetch import DelayedFetch, Fetched, FetchPartition, is_satisfied
from logtier.replication.partition import Partition
from logtier.replication.purgatory import CallLater, Purgatory
from logtier.runtime.clock import Clock

logger = logging.getLogger(__name__)


class ReplicaManager:
    """All replicas that this broker holds.

    Called from the event loop only. Appends and reads are synchronous: they end in the page cache.

    Invariant: after `start` there is a partition for each replica that the metadata image gives this broker, and a log
    on disk for nothing else.
    """

    def __init__(
        self,
        broker_id: int,
        topic_config: Callable[[TopicImage], TopicConfig],
        log_manager: LogManager,
        clock: Clock,
        call_later: CallLater,
    ) -> None:
        self._broker_id = broker_id
        self._topic_config = topic_config
        self._log_manager = log_manager
        self._clock = clock
        self._partitions: dict[TopicPartition, Partition[Log]] = {}
        #: Replicas whose log the disk did not let us make; tried again by `make_missing_logs`.
        self._missing: dict[TopicPartition, TopicImage] = {}
        self._purgatory = Purgatory(call_later)

    def start(self, image: MetadataImage) -> None:
        """Take over the logs on disk that the image knows; the others are left-overs of deleted topics."""
        known = {topic.name: topic for topic in image.topics.values()}
        for topic_partition, log in list(self._log_manager.logs.items()):
            topic = known.get(topic_partition.topic)
            if (
                topic is None
                or topic.topic_id != log.topic_id
                or topic_partition.partition >= len(topic.partitions)
                or self._broker_id not in topic.partitions[topic_partition.partition].replicas
            ):
                logger.warning("log %s belongs to no topic of the metadata: it is removed", topic_partition)
                self._log_manager.delete(topic_partition)
        for topic in known.values():
            self._apply_topic(topic)

    def apply(self, delta: MetadataDelta) -> None:
        """Follow a change of the metadata: create, reconfigure and delete local logs.

        A log that cannot be made does not keep the others from it: the first error is raised when all is done.
        """
        for topic in delta.deleted:
            for index in range(len(topic.partitions)):
                self._remove(TopicPartition(topic.name, index))
        first_error: OSError | None = None
        for topic in (*delta.created, *delta.changed):
            try:
                self._apply_topic(topic)
            except OSError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def make_missing_logs(self) -> None:
        """Try once more to make the logs that the disk did not take (it was full, perhaps)."""
        for topic in {topic.name: topic for topic in self._missing.values()}.values():
            try:
                self._apply_topic(topic)
            except OSError as error:
                logger.error("topic %s has partitions without a log: %s", topic.name, error)
            else:
                logger.info("topic %s has all its logs now", topic.name)

    def partition(self, topic_partition: TopicPartition) -> Partition[Log]:
        """The local partition.

        Raises:
            KafkaError: unknown_topic_or_partition, kafka_storage_error.
        """
        try:
            return self._partitions[topic_partition]
        except KeyError:
            if topic_partition in self._missing:
                raise KafkaError(
                    ErrorCode.kafka_storage_error, f"the log of {topic_partition} could not be made yet"
                ) from None
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, f"this broker has no partition {topic_partition}"
            ) from None

    def log(self, topic_partition: TopicPartition) -> Log:
        """The local log of a partition.

        Raises:
            KafkaError: unknown_topic_or_partition.
        """
        return self.partition(topic_partition).log

    def leader_partitions(self, topic: str) -> list[int]:
        """Indexes of the partitions of a topic that this broker leads."""
        return sorted(
            key.partition for key, partition in self._partitions.items() if key.topic == topic and partition.is_leader
        )

    def append(
        self,
        topic_partition: TopicPartition,
        records: bytes | memoryview,
        *,
        acks: int = 1,
        now_ms: int | None = None,
    ) -> AppendInfo:
        """Append record batches as the leader and wake the fetches that wait for them.

        Args:
            acks: -1 also asks for enough in-sync replicas.

        Raises:
            KafkaError: unknown_topic_or_partition, not_leader_or_follower, not_enough_replicas, what the log refuses.
        """
        partition = self.partition(topic_partition)
        partition.check_leader()
        log = partition.log
        if acks == -1:
            partition.check_enough_in_sync(log.config.min_insync_replicas)
        info = log.append_as_leader(
            records,
            leader_epoch=partition.leader_epoch,
            now_ms=self._clock.now_ms() if now_ms is None else now_ms,
        )
        if partition.advance_high_watermark():
            self._purgatory.check(topic_partition)
        return info

    async def append_and_wait(
        self, topic_partition: TopicPartition, records: bytes | memoryview, timeout_ms: int
    ) -> AppendInfo:
        """Append with acks=all: return once all in-sync replicas have the records.

        With one replica that is at once; the time-out is for the replication to come.

        Raises:
            KafkaError: as `append`; request_timed_out.
        """
        info = self.append(topic_partition, records, acks=-1)
        if self.partition(topic_partition).high_watermark <= info.last_offset:
            raise KafkaError(
                ErrorCode.request_timed_out, f"{topic_partition} was not replicated within {timeout_ms} ms"
            )
        return info

    def read(
        self, topic_partition: TopicPartition, offset: int, bytes_max: int, *, min_one_batch: bool = True
    ) -> LogSlice:
        """Whole batches from `offset` on, up to the high watermark.

        Raises:
            KafkaError: unknown_topic_or_partition, not_leader_or_follower, offset_out_of_range.
        """
        partition = self.partition(topic_partition)
        partition.check_leader()
        return partition.log.read(
            offset, bytes_max, upper_bound_offset=partition.high_watermark, min_one_batch=min_one_batch
        )

    def fetch(
        self, wanted: Sequence[FetchPartition], *, bytes_max: int, bytes_min: int, wait_ms_max: int
    ) -> Fetched | asyncio.Future[Fetched]:
        """Read several partitions, now or when there is enough.

        Returns:
            The partitions in the order asked for, or a future of them; cancel it if the client is gone.
        """
        fetched = self._read_all(wanted, bytes_max)
        if wait_ms_max <= 0 or not wanted or is_satisfied(fetched, bytes_min):
            return fetched
        future: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        operation = DelayedFetch(lambda: self._read_all(wanted, bytes_max), bytes_min, future)
        watch = self._purgatory.watch(operation, {w.topic_partition: None for w in wanted}, wait_ms_max / 1000)
        future.add_done_callback(lambda done: watch.forget() if done.cancelled() else None)
        return future

    def _read_all(self, wanted: Iterable[FetchPartition], bytes_max: int) -> Fetched:
        """Share `bytes_max` out in the order of the request; the first batch found comes whole (KIP-74)."""
        found = []
        left = bytes_max
        nothing_yet = True
        for each in wanted:
            fetched = self._read_one(each, min(left, each.bytes_max), nothing_yet)
            size = fetched.size
            if size:
                nothing_yet = False
                left = max(0, left - size)
            found.append(fetched)
        return found

    def _read_one(self, wanted: FetchPartition, bytes_max: int, min_one_batch: bool) -> FetchedPartition:
        index = wanted.topic_partition.partition
        if wanted.error_code:
            return FetchedPartition(index, wanted.error_code)
        partition = self._partitions.get(wanted.topic_partition)
        if partition is None:
            is_missing = wanted.topic_partition in self._missing
            return FetchedPartition(
                index, ErrorCode.kafka_storage_error if is_missing else ErrorCode.unknown_topic_or_partition
            )
        log = partition.log
        try:
            partition.check_leader(wanted.leader_epoch)
            high_watermark = partition.high_watermark
            if wanted.offset == high_watermark or (bytes_max <= 0 and not min_one_batch):
                records = None
                if not log.log_start_offset <= wanted.offset <= log.log_end_offset:
                    raise KafkaError(ErrorCode.offset_out_of_range)
            else:
                records = log.read(
                    wanted.offset, bytes_max, upper_bound_offset=high_watermark, min_one_batch=min_one_batch
                )
        except KafkaError as error:
            return FetchedPartition(index, error.code, log_start_offset=log.log_start_offset)
        except (OSError, CorruptRecordsError) as error:
            # Concerns this partition alone; above all, it must not reach a producer who has just woken this fetch.
            logger.error("%s cannot be read at offset %d: %s", wanted.topic_partition, wanted.offset, error)
            damaged = isinstance(error, CorruptRecordsError)
            return FetchedPartition(index, ErrorCode.corrupt_message if damaged else ErrorCode.kafka_storage_error)
        return FetchedPartition(
            index, ErrorCode.none, high_watermark, partition.last_stable_offset, log.log_start_offset, records
        )

    def _apply_topic(self, topic: TopicImage) -> None:
        config = self._topic_config(topic)
        first_error: OSError | None = None
        for index, state in enumerate(topic.partitions):
            key = TopicPartition(topic.name, index)
            if self._broker_id not in state.replicas:
                self._remove(key)
                continue
            partition = self._partitions.get(key)
            if partition is None:
                try:
                    log = self._log_manager.logs.get(key) or self._log_manager.create(key, topic.topic_id, config)
                except OSError as error:
                    self._missing[key] = topic
                    first_error = first_error or error
                    continue
                self._missing.pop(key, None)
                partition = self._partitions[key] = Partition(key, self._broker_id, log)
            partition.log.config = config
            partition.update(state.leader, state.leader_epoch, state.replicas, state.isr)
        if first_error is not None:
            raise first_error

    def _remove(self, topic_partition: TopicPartition) -> None:
        self._missing.pop(topic_partition, None)
        if self._partitions.pop(topic_partition, None) is not None:
            try:
                self._log_manager.delete(topic_partition)
            except OSError as error:
                # Nobody reads it any more, and the next start removes it.
                logger.error("the log of %s is not moved away: %s", topic_partition, error)
            # Those who wait for it learn that it is gone.
            self._purgatory.check(topic_partition)
