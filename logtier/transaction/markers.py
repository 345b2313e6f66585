"""The markers that end a transaction in each of its partitions."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks
from headwater.logtier.state_topic.log import MetadataSource
from headwater.logtier.state_topic.writes import Wait
from headwater.logtier.transaction.metadata import TransactionMetadata, TransactionState
from headwater.logtier.transaction.state_log import MarkerAppend, TransactionReplicas

logger = logging.getLogger(__name__)

#: Time for the in-sync replicas to have a marker, which is then retried; Kafka's request.timeout.ms.
TIMEOUT_MS: Final = 30_000

#: Called with each marker: partition, producer id, offset of the marker, whether the transaction is committed.
MarkerListener = Callable[[TopicPartition, int, int, bool], None]


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a producer's transaction.

    Attributes:
        coordinator_epoch: The leader epoch in which the coordinator loaded the transactional id.
        transaction_version: From 2 on, the producer epoch is that of the producer's next transaction (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int


class RemoteMarkers(Protocol):
    """Asks other brokers to write markers."""

    def write_marker(
        self, broker_id: int, marker: Marker, partitions: Set[TopicPartition], /
    ) -> Awaitable[Mapping[TopicPartition, ErrorCode]]:
        """Ask the leader of partitions to write a marker; return its error codes. Raises KafkaError."""


class MarkerWriter:
    """Writes markers to the partitions that this broker leads, and asks other leaders to write theirs.

    Args:
        listener: Called with each committed marker in a partition that this broker leads, also of a write that has
            failed, or whose caller is gone: the state of coordinators follows the log.
        remote: None on a single node.
    """

    def __init__(
        self,
        broker_id: int,
        replicas: TransactionReplicas,
        metadata: MetadataSource,
        listener: MarkerListener,
        remote: RemoteMarkers | None,
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._metadata = metadata
        self._listener = listener
        self._remote = remote
        self._tasks = SpawnedTasks("markers of transactions")

    async def aclose(self) -> None:
        """Tell of no more markers."""
        await self._tasks.cancel()

    async def write(
        self,
        transactional_id: str,
        outcome: TransactionMetadata,
        coordinator_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, KafkaError]:
        """Write the markers of a transaction's outcome, replicated, and flushed as the configs of their topics require.

        A partition that is in no topic of the image was deleted: the coordinator that added it knew its topic, in an
        image no newer than the election of this coordinator, which this broker's image contains.

        Returns:
            The partitions that refuse the marker at present, with the reason; the caller retries.

        Raises:
            KafkaError: transaction_coordinator_fenced: another coordinator has written to a partition.
        """
        assert outcome.state.is_prepared
        marker = Marker(
            outcome.producer_id,
            outcome.producer_epoch,
            outcome.state is TransactionState.PREPARE_COMMIT,
            coordinator_epoch,
            outcome.client_version,
        )
        by_leader: dict[int, set[TopicPartition]] = {}
        image = self._metadata.image
        for topic_partition in sorted(partitions):
            leader = _leader(image, topic_partition)
            if leader is None:
                logger.info(
                    "transactional id %r: %s was deleted and needs no marker", transactional_id[:249], topic_partition
                )
            else:
                by_leader.setdefault(leader, set()).add(topic_partition)
        if by_leader.keys() <= {self._broker_id}:
            # At once, as on a single node: the producer's next transaction need not wait.
            refused = await self.write_here(marker, by_leader.get(self._broker_id, ()))
        else:
            refused = await self._write_at_all(by_leader, marker)
        for topic_partition, error in list(refused.items()):
            if error.code is ErrorCode.transaction_coordinator_fenced:
                raise error
            if error.code is ErrorCode.invalid_producer_epoch:
                # The partition has records of a later transaction: this one has ended there.
                logger.warning(
                    "transactional id %r: the marker for %s is not needed any more: %s",
                    transactional_id[:249],
                    topic_partition,
                    error,
                )
                del refused[topic_partition]
        return refused

    async def _write_at_all(
        self, by_leader: Mapping[int, Set[TopicPartition]], marker: Marker
    ) -> dict[TopicPartition, KafkaError]:
        results = await asyncio.gather(
            *(self._write_at(leader, marker, led) for leader, led in by_leader.items()), return_exceptions=True
        )
        refused: dict[TopicPartition, KafkaError] = {}
        for led, result in zip(by_leader.values(), results, strict=True):
            if isinstance(result, KafkaError):
                refused.update(dict.fromkeys(led, result))
            elif isinstance(result, BaseException):
                raise result
            else:
                refused.update(result)
        return refused

    async def _write_at(
        self, leader: int, marker: Marker, partitions: Set[TopicPartition]
    ) -> Mapping[TopicPartition, KafkaError]:
        if leader == self._broker_id:
            return await self.write_here(marker, partitions)
        if leader == NO_BROKER or self._remote is None:
            raise KafkaError(ErrorCode.leader_not_available, f"no broker leads {', '.join(map(str, partitions))}")
        codes = await self._remote.write_marker(leader, marker, partitions)
        return {
            each: KafkaError(code, f"broker {leader} refused the marker for {each}")
            for each, code in codes.items()
            if code is not ErrorCode.none
        }

    async def write_here(
        self, marker: Marker, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaError]:
        """Write a marker to partitions that this broker leads; return those that refuse it, with the reason."""
        refused: dict[TopicPartition, KafkaError] = {}
        waiting: dict[TopicPartition, Coroutine[Any, Any, None]] = {}
        for topic_partition in sorted(partitions):
            try:
                replicated = self._append(marker, topic_partition)
            except KafkaError as error:
                refused[topic_partition] = error
            except OSError as error:
                refused[topic_partition] = KafkaError(ErrorCode.kafka_storage_error, str(error))
            else:
                if replicated is not None:
                    waiting[topic_partition] = replicated
        failures = await asyncio.gather(*waiting.values(), return_exceptions=True) if waiting else ()
        for topic_partition, failure in zip(waiting, failures, strict=True):
            if isinstance(failure, KafkaError):
                refused[topic_partition] = failure
            elif failure is not None:
                raise failure
        return refused

    def _append(self, marker: Marker, topic_partition: TopicPartition) -> Coroutine[Any, Any, None] | None:
        """Append a marker; return the wait for its replication, None without one."""
        info = self._replicas.append_end_txn_marker(
            topic_partition,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            commit=marker.is_commit,
            transaction_version=marker.transaction_version,
        )
        replication = self._replicas.replication(topic_partition, info, TIMEOUT_MS)
        if replication is not None:
            # In the leader epoch of the append: a later one may have another record at this offset.
            commitment = self._replicas.commitment(topic_partition, info.last_offset, info.flush)
            return self._replicated(marker, topic_partition, info, replication, commitment)
        self._listener(topic_partition, marker.producer_id, info.first_offset, marker.is_commit)
        return None

    async def _replicated(
        self,
        marker: Marker,
        topic_partition: TopicPartition,
        info: MarkerAppend,
        replication: Coroutine[Any, Any, None],
        commitment: Wait | None,
    ) -> None:
        try:
            await replication
        except BaseException:
            if commitment is not None:
                self._tasks.spawn(self._committed_later(marker, topic_partition, info, commitment))
            raise
        self._listener(topic_partition, marker.producer_id, info.first_offset, marker.is_commit)

    async def _committed_later(
        self, marker: Marker, topic_partition: TopicPartition, info: MarkerAppend, commitment: Wait
    ) -> None:
        """Tell of a marker that is in the log, and that nobody waits for any more, once it is committed.

        A marker that is written again is none in the log, and waits for what came after the first one, too.
        """
        try:
            await commitment()
        except KafkaError as error:
            logger.debug("the marker of %s is the next leader's to read: %s", topic_partition, error)
            return
        self._listener(topic_partition, marker.producer_id, info.first_offset, marker.is_commit)


def _leader(image: MetadataImage, topic_partition: TopicPartition) -> int | None:
    """Return the leader of a partition, NO_BROKER without one; None if there is no such partition."""
    topic = image.topic(topic_partition.topic)
    if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
        return None
    return topic.partitions[topic_partition.partition].leader
