"""The transactional ids that this broker coordinates, and the log that makes them durable."""

from collections.abc import Callable, Coroutine, Iterator, Sequence, Set
from typing import Any, Protocol

from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.state_topic.log import MetadataSource, StateTopicLog, StateTopicReplicas
from headwater.logtier.state_topic.writes import Refused, Wait
from headwater.logtier.transaction.metadata import TransactionMetadata
from headwater.logtier.transaction.records import transaction_key, transaction_value
from headwater.logtier.transaction.replay import TransactionReplay
from headwater.logtier.transaction.topic import TRANSACTION_TOPIC
from headwater.logtier.transaction.transaction import Transaction


class MarkerAppend(Protocol):
    """Result of an append of a marker; passed to `replication` and, with its parts, to `commitment`."""

    @property
    def first_offset(self) -> int:
        """Offset of the marker."""

    @property
    def last_offset(self) -> int:
        """The same; the offset before it if the log has the marker already."""

    @property
    def flush(self) -> Any:
        """The sync of the marker, None if none is awaited."""


class TransactionReplicas(StateTopicReplicas, Protocol):
    """The replica manager's interface for the transaction coordinator."""

    def append_end_txn_marker(
        self,
        topic_partition: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> MarkerAppend:
        """Append the marker that ends a producer's transaction in a partition."""

    def replication(
        self, topic_partition: TopicPartition, info: Any, timeout_ms: int, /
    ) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that waits until an append is replicated and flushed; None if it is."""


class TransactionStateLog(StateTopicLog):
    """Transactional ids by name, and every write to `__transaction_state`.

    Files: the partitions of `__transaction_state` that this broker leads.
    """

    TOPIC = TRANSACTION_TOPIC
    CONTENTS = "transactional ids"

    def __init__(self, replicas: StateTopicReplicas, metadata: MetadataSource, timeout_ms: int) -> None:
        super().__init__(replicas, metadata, timeout_ms)
        self.transactions: dict[str, Transaction] = {}

    @staticmethod
    def _described(name: str) -> str:
        return f"transactional id {name[:249]!r}"

    async def load(self, partition: int, registered: Callable[[list[Transaction]], None]) -> Wait | None:
        """Read a partition's log and register its transactions; return the rest of the load, if it has to wait.

        Args:
            registered: Called with the transactions when the partition is active.
        """
        replay = TransactionReplay(f"{TRANSACTION_TOPIC}-{partition}")
        loaded: dict[str, Transaction] = {}

        def restoring() -> Iterator[None]:
            for name, metadata in replay.transactions.items():
                loaded[name] = Transaction(name, metadata)
                yield

        def adopt() -> None:
            self.transactions.update(loaded)
            registered(list(loaded.values()))

        return await self._read(partition, replay, adopt, restoring())

    def forget_all(self) -> None:
        """Drop all state after a deletion of the topic."""
        super().forget_all()
        self.transactions.clear()

    def _drop(self, partitions: Set[int]) -> None:
        for name in [each for each in self.transactions if self.partition_of(each) in partitions]:
            del self.transactions[name]

    async def write(
        self,
        transactional_id: str,
        metadata: TransactionMetadata,
        now_ms: int,
        *,
        applied: Callable[[], None],
        refused: Refused,
        has_timeout: bool = True,
    ) -> None:
        """Make a transition durable: call `applied` when it is committed, else `refused`.

        Raises:
            UndecidedWriteError: The time is over, and neither was called yet.
            KafkaError: a code of WRITE_ERRORS, for the coordinator's client.
        """
        record = Record(transaction_key(transactional_id), transaction_value(metadata), now_ms)
        batch = build_batch([record])
        await self._write(
            transactional_id, batch, applied=lambda _: applied(), refused=refused, has_timeout=has_timeout
        )

    async def write_tombstones(
        self, transactional_ids: Sequence[str], now_ms: int, *, applied: Callable[[], None], refused: Refused
    ) -> None:
        """Remove at most TOMBSTONES_PER_BATCH ids of one partition durably, all or none.

        Raises:
            KafkaError: as for `write`.
        """
        batch = build_batch([Record(transaction_key(name), None, now_ms) for name in transactional_ids])
        await self._write(transactional_ids[0], batch, applied=lambda _: applied(), refused=refused)
