"""The markers that end a transaction in each of its partitions."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.state_topic.log import MetadataSource
from headwater.logtier.transaction.metadata import TransactionMetadata, TransactionState
from headwater.logtier.transaction.state_log import TransactionReplicas

logger = logging.getLogger(__name__)

#: The partition has records of a later transaction or coordinator: this transaction has ended there.
_OVERTAKEN: Final = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.transaction_coordinator_fenced})

#: Time for the in-sync replicas to have a marker, which is then retried; Kafka's request.timeout.ms.
TIMEOUT_MS: Final = 30_000

#: Called with each marker: partition, producer id, offset of the marker, whether the transaction is committed.
MarkerListener = Callable[[TopicPartition, int, int, bool], None]


class MarkerWriter:
    """Writes markers to the partitions that this broker leads, and calls `listener` after each."""

    def __init__(self, replicas: TransactionReplicas, metadata: MetadataSource, listener: MarkerListener) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._listener = listener

    async def write(
        self,
        transactional_id: str,
        outcome: TransactionMetadata,
        coordinator_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, KafkaError]:
        """Write the markers of a transaction's outcome, replicated, and flushed as the configs of their topics require.

        Returns:
            The partitions that refuse the marker at present, with the reason; the caller retries.
        """
        assert outcome.state.is_prepared
        refused: dict[TopicPartition, KafkaError] = {}
        waiting: dict[TopicPartition, Coroutine[Any, Any, None]] = {}
        for topic_partition in sorted(partitions):
            if not _exists(self._metadata.image, topic_partition):
                logger.info(
                    "transactional id %r: %s was deleted and needs no marker", transactional_id[:249], topic_partition
                )
                continue
            try:
                replication = self._append(topic_partition, outcome, coordinator_epoch)
            except KafkaError as error:
                if error.code in _OVERTAKEN:
                    logger.warning(
                        "transactional id %r: the marker for %s is not needed any more: %s",
                        transactional_id[:249],
                        topic_partition,
                        error,
                    )
                else:
                    refused[topic_partition] = error
            except OSError as error:
                refused[topic_partition] = KafkaError(ErrorCode.kafka_storage_error, str(error))
            else:
                if replication is not None:
                    waiting[topic_partition] = replication
        failures = await asyncio.gather(*waiting.values(), return_exceptions=True)
        for topic_partition, failure in zip(waiting, failures, strict=True):
            if isinstance(failure, KafkaError):
                refused[topic_partition] = failure
            elif failure is not None:
                raise failure
        return refused

    def _append(
        self, topic_partition: TopicPartition, outcome: TransactionMetadata, coordinator_epoch: int
    ) -> Coroutine[Any, Any, None] | None:
        """Append a marker; return the wait for its replication, None without one."""
        committed = outcome.state is TransactionState.PREPARE_COMMIT
        info = self._replicas.append_end_txn_marker(
            topic_partition,
            producer_id=outcome.producer_id,
            producer_epoch=outcome.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            commit=committed,
            transaction_version=outcome.client_version,
        )
        self._listener(topic_partition, outcome.producer_id, info.first_offset, committed)
        return self._replicas.replication(topic_partition, info, TIMEOUT_MS)


def _exists(image: MetadataImage, topic_partition: TopicPartition) -> bool:
    topic = image.topic(topic_partition.topic)
    return topic is not None and 0 <= topic_partition.partition < len(topic.partitions)
