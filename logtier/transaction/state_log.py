"""The transactional ids that this broker coordinates, and the log that makes them durable."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Final, Protocol

from logtier.log.durability import FlushRound
from logtier.metadata.coordinator_partition import partition_for
from logtier.metadata.image import MetadataImage
from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.protocol.topic_partition import TopicPartition
from logtier.records.batch import Buffer, CorruptRecordsError, Record, build_batch
from logtier.transaction.metadata import TransactionMetadata
from logtier.transaction.records import transaction_key, transaction_value
from logtier.transaction.replay import Replay
from logtier.transaction.topic import TRANSACTION_TOPIC
from logtier.transaction.transaction import Transaction

logger = logging.getLogger(__name__)

#: While a log is loaded, other requests get a turn after so many batches.
BATCHES_PER_TURN: Final = 64
#: Most tombstones of one batch: keeps expiry far below max.message.bytes, whatever the lengths of ids.
TOMBSTONES_PER_BATCH: Final = 500


class AppendInfo(Protocol):
    """What became of an append."""

    @property
    def first_offset(self) -> int:
        """Where it begins."""

    @property
    def flush(self) -> FlushRound | None:
        """The flush that it waits for, where the topic asks for one."""


class _Log(Protocol):
    def batches(self) -> Iterator[Buffer]: ...


class Replicas(Protocol):
    """What the transaction coordinator needs of the replica manager."""

    def leader_partitions(self, topic: str) -> list[int]:
        """Partitions of a topic that this broker leads."""

    def log(self, topic_partition: TopicPartition, /) -> _Log:
        """The local log of a partition."""

    async def append_and_wait(self, topic_partition: TopicPartition, records: bytes, timeout_ms: int, /) -> AppendInfo:
        """Append with acks=all. Writes of one partition complete in the order they were made."""

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
        """End a producer's transaction in a partition."""


class MetadataSource(Protocol):
    """What the transaction coordinator reads of the metadata cache."""

    @property
    def image(self) -> MetadataImage:
        """The cluster as it is known now."""


class _PartitionState(Enum):
    LOADING = auto()
    ACTIVE = auto()
    FAILED = auto()


class StateLog:
    """Transactional ids by name, and every write to `__transaction_state`.

    Files: the partitions of `__transaction_state` that this broker leads. Invariant: a transaction changes only by what
    is in the log, in its order, so the live state equals the log's replay. Only the coordinator uses it.
    """

    def __init__(self, replicas: Replicas, metadata: MetadataSource, timeout_ms: int) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._replicas = replicas
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._partitions: dict[int, _PartitionState] = {}

    def partition_of(self, transactional_id: str) -> int:
        """The partition of a transactional id.

        Raises:
            KafkaError: not_coordinator, if the topic does not exist.
        """
        topic = self._metadata.image.topic(TRANSACTION_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.not_coordinator, f"{TRANSACTION_TOPIC} does not exist yet")
        return partition_for(transactional_id, len(topic.partitions))

    def active_partition_of(self, transactional_id: str) -> int:
        """The partition of a transactional id, if its state is loaded here.

        Raises:
            KafkaError: not_coordinator, coordinator_load_in_progress, coordinator_not_available (a damaged log).
        """
        partition = self.partition_of(transactional_id)
        state = self._partitions.get(partition)
        if state is _PartitionState.ACTIVE:
            return partition
        name = repr(transactional_id[:249])
        if state is None:
            raise KafkaError(ErrorCode.not_coordinator, f"this broker does not coordinate transactional id {name}")
        if state is _PartitionState.FAILED:
            raise KafkaError(ErrorCode.coordinator_not_available, f"{TRANSACTION_TOPIC}-{partition} cannot be read")
        raise KafkaError(
            ErrorCode.coordinator_load_in_progress, f"the state of transactional id {name} is being loaded"
        )

    def coordinator_epoch(self, partition: int) -> int:
        """The epoch in which this broker leads a partition: markers carry it, so that a former leader's are refused."""
        topic = self._metadata.image.topic(TRANSACTION_TOPIC)
        return -1 if topic is None else topic.partitions[partition].leader_epoch

    @property
    def is_loading(self) -> bool:
        """Whether the state of some ids is still being read."""
        return any(state is _PartitionState.LOADING for state in self._partitions.values())

    def new_partitions(self) -> list[int]:
        """Partitions this broker leads since the last call; they count as loading from now on."""
        found = [each for each in self._replicas.leader_partitions(TRANSACTION_TOPIC) if each not in self._partitions]
        self._partitions.update(dict.fromkeys(found, _PartitionState.LOADING))
        return found

    async def load(self, partition: int) -> list[Transaction]:
        """Read a partition's log and take its transactions over.

        A log that cannot be read to its end is not half used: an outcome that was promised could be forgotten.
        """
        key = TopicPartition(TRANSACTION_TOPIC, partition)
        replay = Replay(str(key))
        try:
            for count, batch in enumerate(self._replicas.log(key).batches(), start=1):
                replay.apply(batch)
                if count % BATCHES_PER_TURN == 0:
                    await asyncio.sleep(0)
        except (KafkaError, OSError, CorruptRecordsError) as error:
            logger.error("%s cannot be loaded, its transactional ids are not available: %s", key, error)
            self._partitions[partition] = _PartitionState.FAILED
            return []
        loaded = [Transaction(name, metadata) for name, metadata in replay.transactions.items()]
        self.transactions.update((transaction.transactional_id, transaction) for transaction in loaded)
        self._partitions[partition] = _PartitionState.ACTIVE
        return loaded

    def forget_all(self) -> None:
        """The topic is gone, and with it all state."""
        self._partitions.clear()
        self.transactions.clear()

    async def write(self, transactional_id: str, metadata: TransactionMetadata, now_ms: int) -> None:
        """Make a transition durable.

        Raises:
            KafkaError: with a code that a client of the coordinator may be told.
        """
        record = Record(transaction_key(transactional_id), transaction_value(metadata), now_ms)
        await self._append(self.active_partition_of(transactional_id), [record])

    async def write_tombstones(self, partition: int, transactional_ids: Sequence[str], now_ms: int) -> None:
        """Remove ids of one partition durably, all or none; there are at most TOMBSTONES_PER_BATCH.

        Raises:
            KafkaError: as `write`.
        """
        await self._append(partition, [Record(transaction_key(name), None, now_ms) for name in transactional_ids])

    async def _append(self, partition: int, records: Sequence[Record]) -> None:
        key = TopicPartition(TRANSACTION_TOPIC, partition)
        try:
            await self._replicas.append_and_wait(key, build_batch(records), self._timeout_ms)
        except OSError as error:
            logger.error("%s cannot be written: %s", key, error)
            raise KafkaError(ErrorCode.not_coordinator, f"{key} cannot be written: {error}") from error
        except KafkaError as error:
            raise KafkaError(_CLIENT_ERRORS.get(error.code, error.code), error.message) from error


_CLIENT_ERRORS: Final = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}
