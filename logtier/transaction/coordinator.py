"""The transaction coordinator: the shell around the pure transactions, with writes, timers and markers."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

from headwater.logtier.config import BrokerConfig
from headwater.logtier.metadata.image import BrokerRegistration, MetadataDelta
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks
from headwater.logtier.state_topic.loading import StateLoader
from headwater.logtier.state_topic.log import TOMBSTONES_PER_BATCH, Metadata
from headwater.logtier.state_topic.topic import TopicCreator, create_state_topic
from headwater.logtier.state_topic.turns import Turns
from headwater.logtier.state_topic.writes import Wait
from headwater.logtier.transaction.additions import Additions
from headwater.logtier.transaction.markers import MarkerWriter
from headwater.logtier.transaction.metadata import (
    NO_PRODUCER_ID,
    TRANSACTION_VERSION_WITH_EPOCH_BUMPS,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from headwater.logtier.transaction.state_log import TransactionReplicas, TransactionStateLog
from headwater.logtier.transaction.topic import TRANSACTION_TOPIC, transaction_topic
from headwater.logtier.transaction.transaction import ProducerIdNeededError, Transaction
from headwater.logtier.transaction.verifier import VerifiedPartition

logger = logging.getLogger(__name__)

#: Longest transactional id: the log's strings have int16 lengths.
NAME_BYTES_MAX: Final = 32_767
#: How long a write of `__transaction_state` waits for its replicas.
WRITE_TIMEOUT_MS: Final = 30_000
#: Pauses before a marker or an outcome that a log has refused is written again.
RETRY_BACKOFF_MS: Final = 100
RETRY_BACKOFF_MS_MAX: Final = 5_000


class TransactionCoordinator:
    """All transactional ids whose partition of `__transaction_state` this broker leads.

    Called from the event loop only. Invariants: an outcome is in the log before its first marker; all markers are in
    their logs before the outcome counts as complete; the present coordinator completes every outcome in the log; a
    transition under way ends even if its request is cancelled.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        replica_manager: TransactionReplicas,
        controller: TopicCreator,
        metadata: Metadata,
        next_producer_id: Callable[[], Awaitable[int]],
        markers: MarkerWriter,
    ) -> None:
        self._config = config
        self._clock = clock
        self._controller = controller
        self._metadata = metadata
        self._next_producer_id = next_producer_id
        self._log = TransactionStateLog(replica_manager, metadata, WRITE_TIMEOUT_MS)
        self._markers = markers
        self._additions = Additions(self._add_collected)
        self._tasks = SpawnedTasks("transaction coordinator")
        self._loader = StateLoader(self._log, self._load, lambda: None, self._tasks.spawn)
        self._is_stopped = False

    async def start(self) -> None:
        """Begin to load the partitions this broker leads; requests meanwhile get coordinator_load_in_progress."""
        self._metadata.subscribe(self._metadata_changed)
        self._loader.begin()
        config = self._config
        self._tasks.spawn(
            self._periodically(config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self.abort_timed_out)
        )
        self._tasks.spawn(
            self._periodically(config.transaction_remove_expired_transaction_cleanup_interval_ms, self.remove_expired)
        )

    async def stop(self) -> None:
        """Finish the writes under way and refuse new ones. The next start completes outcomes found in the log."""
        self._is_stopped = True
        self._loader.stop()
        await self._log.finish_writes()
        await self._tasks.cancel()

    # ---- where a transactional id is ----

    async def find(self, transactional_id: str) -> BrokerRegistration:
        """Return the broker that coordinates an id; create `__transaction_state` if it does not exist.

        Raises:
            KafkaError: coordinator_not_available.
        """
        await self._ensure_topic()
        return self.coordinator_of(transactional_id)

    def coordinator_of(self, transactional_id: str) -> BrokerRegistration:
        """Return the broker that coordinates an id.

        Raises:
            KafkaError: coordinator_not_available, not_coordinator if `__transaction_state` does not exist.
        """
        partition = self._log.partition_of(transactional_id)
        image = self._metadata.image
        topic = image.topic(TRANSACTION_TOPIC)
        broker = None if topic is None else image.brokers.get(topic.partitions[partition].leader)
        if broker is None:
            raise KafkaError(
                ErrorCode.coordinator_not_available, f"no broker leads {TRANSACTION_TOPIC}-{partition} at present"
            )
        return broker

    async def _ensure_topic(self) -> None:
        if self._metadata.image.topic(TRANSACTION_TOPIC) is None:
            await create_state_topic(self._controller, transaction_topic(self._config))
            self._loader.begin()
        # An empty log is loaded at once, so that the first client need not retry.
        if self._loader.is_busy:
            await asyncio.sleep(0)

    # ---- requests ----

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> ProducerIdAndEpoch:
        """Make a producer the only one of its transactional id: fence the previous producer, abort its transaction.

        Args:
            expected: Producer id and epoch of a producer that initialises again after an error (KIP-360).

        Raises:
            KafkaError: invalid_request, invalid_transaction_timeout, concurrent_transactions (retry: a transaction is
                being ended), producer_fenced, or the error of the log.
        """
        self._check_available(transactional_id)
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            raise KafkaError(
                ErrorCode.invalid_transaction_timeout,
                f"a transaction timeout of {timeout_ms} ms is not between 1 and transaction.max.timeout.ms "
                f"({self._config.transaction_max_timeout_ms})",
            )
        self._log.active_partition_of(transactional_id)
        new_producer_id: int | None = None
        while True:
            transaction = self._existing(transactional_id)
            if transaction is None:
                if new_producer_id is None:
                    new_producer_id = await self._next_producer_id()
                    continue  # another producer may have begun meanwhile
                transaction = self._create(transactional_id, new_producer_id)
                new_producer_id = None
            try:
                begun = transaction.init_producer(
                    expected, timeout_ms, self._clock.now_ms(), new_producer_id=new_producer_id
                )
            except ProducerIdNeededError:
                new_producer_id = await self._next_producer_id()
                continue
            break
        if begun is None:
            await self._fence(transaction)
            raise KafkaError(
                ErrorCode.concurrent_transactions,
                f"transactional id {transactional_id[:249]!r}: the transaction of the producer before is being aborted",
            )
        await self._write(transaction, begun)
        logger.info(
            "transactional id %r: producer %d begins with epoch %d",
            transactional_id[:249],
            begun.producer_id,
            begun.producer_epoch,
        )
        return begun.producer

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: AbstractSet[TopicPartition],
        *,
        client_version: int,
    ) -> None:
        """Add partitions to the producer's transaction; the first ones begin it. Return when they are in the log.

        Raises:
            KafkaError: invalid_request, invalid_producer_id_mapping, producer_fenced, concurrent_transactions, or the
                error of the log.
        """
        transaction = self._known(transactional_id, producer)
        added = transaction.add_partitions(producer, partitions, self._clock.now_ms(), client_version=client_version)
        if added is not None:
            await self._write(transaction, added)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: AbstractSet[TopicPartition]
    ) -> set[TopicPartition]:
        """Return the partitions that are not part of the producer's transaction (KIP-890).

        Raises:
            KafkaError: invalid_request, invalid_producer_id_mapping, producer_fenced, concurrent_transactions.
        """
        return self._known(transactional_id, producer).verify(producer, partitions)

    def verify_partition(self, verified: VerifiedPartition) -> Awaitable[None] | None:
        """Check, before an append, that the producer's transaction is open and includes the partition.

        If it is to be added, this is done first, and the transaction begins if necessary (transaction.version 2).
        Concurrent additions are written together.

        Returns:
            None, or an awaitable if the partition is being added.

        Raises:
            KafkaError: transaction_abortable (the partition was not added), and the errors of `add_partitions`; also
                from the awaitable. A Produce response has another code for producer_fenced.
        """
        producer, topic_partition = verified.producer, verified.topic_partition
        transaction = self._known(verified.transactional_id, producer)
        if not verified.adds:
            if transaction.verify(producer, {topic_partition}):
                raise KafkaError(
                    ErrorCode.transaction_abortable, f"{topic_partition} was not added to the producer's transaction"
                )
            return None
        if transaction.includes(producer, topic_partition):
            return None
        return self._additions.add(transaction, producer, topic_partition)

    async def _add_collected(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, partitions: AbstractSet[TopicPartition]
    ) -> None:
        await self.add_partitions(
            transaction.transactional_id, producer, partitions, client_version=TRANSACTION_VERSION_WITH_EPOCH_BUMPS
        )

    async def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, client_version: int
    ) -> ProducerIdAndEpoch:
        """Commit or abort the producer's transaction. Return when the outcome is in the log; the markers follow.

        Returns:
            The producer's id and epoch from now on (transaction.version 2: the next epoch, or a new id).

        Raises:
            KafkaError: invalid_request, invalid_producer_id_mapping, producer_fenced, concurrent_transactions,
                invalid_txn_state, or the error of the log.
        """
        new_producer_id: int | None = None
        while True:
            transaction = self._known(transactional_id, producer)
            try:
                outcome = transaction.end(
                    producer,
                    self._clock.now_ms(),
                    commit=commit,
                    client_version=client_version,
                    new_producer_id=new_producer_id,
                )
            except ProducerIdNeededError:
                new_producer_id = await self._next_producer_id()
                continue
            break
        if outcome is None:
            return transaction.metadata.producer
        await self._write(transaction, outcome)
        if outcome.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdAndEpoch(outcome.next_producer_id, 0)
        return outcome.producer

    # ---- administration ----

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Return the metadata of an id.

        Raises:
            KafkaError: invalid_request, transactional_id_not_found, not_coordinator, coordinator_load_in_progress,
                coordinator_not_available.
        """
        self._check_available(transactional_id)
        self._log.active_partition_of(transactional_id)
        transaction = self._existing(transactional_id)
        if transaction is None or transaction.is_expiring or transaction.is_new:
            raise KafkaError(
                ErrorCode.transactional_id_not_found, f"transactional id {transactional_id[:249]!r} is not known"
            )
        return transaction.metadata

    def transactions(self) -> Iterator[tuple[str, TransactionMetadata]]:
        """Return all transactional ids that this broker coordinates, for reading.

        Raises:
            KafkaError: coordinator_load_in_progress (some are missing), coordinator_not_available.
        """
        if self._is_stopped:
            raise KafkaError(ErrorCode.coordinator_not_available, "the broker is being stopped")
        self._log.check_all_loaded()
        return self.loaded_transactions()

    def loaded_transactions(self) -> Iterator[tuple[str, TransactionMetadata]]:
        """Return the ids of the partitions that are loaded, for metrics: one may wait for its ISR, however long."""
        return (
            (name, transaction.metadata)
            for name, transaction in list(self._log.transactions.items())
            if not transaction.is_expiring and not transaction.is_new
        )

    # ---- transitions ----

    async def _write(self, transaction: Transaction, metadata: TransactionMetadata) -> None:
        """Make a prepared transition durable and adopt it; the write ends even if the request is cancelled.

        Raises:
            KafkaError: not_coordinator (another broker coordinates the id, or its partition was reloaded since the
                lookup), or the error of the log.
        """
        name = transaction.transactional_id
        if not self._is_registered(transaction):
            transaction.cancel()
            raise KafkaError(
                ErrorCode.not_coordinator,
                f"transactional id {name[:249]!r} has another coordinator or epoch",
            )

        def applied() -> None:
            transaction.complete()
            if metadata.state.is_prepared:
                self._begin_completion(transaction)

        def refused(_: KafkaError) -> None:
            transaction.cancel()
            if transaction.is_new and self._is_registered(transaction):
                del self._log.transactions[name]  # no response named the new id

        await self._log.write(name, metadata, self._clock.now_ms(), applied=applied, refused=refused)

    async def _fence(self, transaction: Transaction) -> None:
        await self._write(transaction, transaction.fence(self._clock.now_ms()))

    def _begin_completion(self, transaction: Transaction) -> None:
        # Prepared before the first wait, so that no request can intervene.
        prepared = transaction.metadata
        finished = transaction.finish(self._clock.now_ms())
        epoch = self._log.leader_epoch(self._log.partition_of(transaction.transactional_id))
        self._tasks.spawn(self._complete(transaction, prepared, finished, epoch))

    async def _complete(
        self,
        transaction: Transaction,
        prepared: TransactionMetadata,
        finished: TransactionMetadata,
        coordinator_epoch: int,
    ) -> None:
        """Write the markers of an outcome, then its completion; retry until both are in their logs.

        Args:
            coordinator_epoch: The leader epoch in which the id was loaded. A partition refuses it if a later
                coordinator has written there, which completes the outcome: this one then leaves the id alone.
        """
        name = transaction.transactional_id
        missing: AbstractSet[TopicPartition] = prepared.partitions
        backoff_ms = RETRY_BACKOFF_MS
        while self._is_registered(transaction):
            try:
                refused = await self._markers.write(name, prepared, coordinator_epoch, missing)
                missing = refused.keys()
                if not refused:
                    if not self._is_registered(transaction):
                        return  # the coordinator that has loaded the id since then completes the outcome
                    await self._log.write(
                        name,
                        finished,
                        self._clock.now_ms(),
                        applied=transaction.complete,
                        refused=lambda _: None,
                        has_timeout=False,  # A second record of the same transition must not follow.
                    )
                    return
                reason = next(iter(refused.values()))
            except KafkaError as error:
                if error.code is ErrorCode.transaction_coordinator_fenced:
                    logger.warning("transactional id %r: another broker coordinates it: %s", name[:249], error)
                    return
                reason = error
            except Exception as fault:
                logger.exception("transactional id %r: its outcome cannot be completed", name[:249])
                reason = KafkaError(ErrorCode.unknown_server_error, str(fault))
            if self._is_stopped:
                return  # the next start completes it
            logger.warning(
                "transactional id %r: its outcome is not complete yet and is tried again in %d ms: %s",
                name[:249],
                backoff_ms,
                reason,
            )
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, RETRY_BACKOFF_MS_MAX)

    # ---- time ----

    async def abort_timed_out(self) -> None:
        """Abort the transactions that exceed their producers' timeouts."""
        now_ms = self._clock.now_ms()
        for transaction in list(self._log.transactions.values()):
            metadata = transaction.metadata
            if transaction.has_pending_transition or not metadata.is_timed_out(now_ms):
                continue
            try:
                await self._fence(transaction)
            except KafkaError as error:
                if self._is_registered(transaction):
                    logger.warning(
                        "transactional id %r: its transaction has timed out and is not aborted yet: %s",
                        transaction.transactional_id[:249],
                        error,
                    )
            else:
                logger.info(
                    "transactional id %r: the transaction of producer %d (epoch %d) is aborted: it was open for %d ms, "
                    "transaction.timeout.ms is %d",
                    transaction.transactional_id[:249],
                    metadata.producer_id,
                    metadata.producer_epoch,
                    now_ms - metadata.start_ms,
                    metadata.timeout_ms,
                )

    async def remove_expired(self) -> None:
        """Remove the ids that no producer has used for `transactional.id.expiration.ms`."""
        now_ms = self._clock.now_ms()
        expired: dict[int, list[Transaction]] = {}
        for name, transaction in list(self._log.transactions.items()):
            if self._is_expired(transaction, now_ms):
                expired.setdefault(self._log.partition_of(name), []).append(transaction)
        for partition, transactions in expired.items():
            for start in range(0, len(transactions), TOMBSTONES_PER_BATCH):
                await self._remove(partition, transactions[start : start + TOMBSTONES_PER_BATCH], now_ms)

    def _is_expired(self, transaction: Transaction, now_ms: int) -> bool:
        expiration_ms = self._config.transactional_id_expiration_ms
        return not transaction.has_pending_transition and transaction.metadata.is_expired(now_ms, expiration_ms)

    async def _remove(self, partition: int, transactions: list[Transaction], now_ms: int) -> None:
        # Ids that were used or reloaded while other partitions were written remain.
        transactions = [each for each in transactions if self._is_registered(each) and self._is_expired(each, now_ms)]
        for transaction in transactions:
            transaction.expire()
        names = [transaction.transactional_id for transaction in transactions]
        if not names:
            return

        def applied() -> None:
            for name in names:
                self._log.transactions.pop(name, None)
            logger.info("%s-%d: expired transactional ids removed: %d", TRANSACTION_TOPIC, partition, len(names))

        def refused(error: KafkaError) -> None:
            for transaction in transactions:
                transaction.cancel()
            logger.warning("%d transactional ids have expired and are not removed yet: %s", len(names), error)

        with contextlib.suppress(KafkaError):
            await self._log.write_tombstones(names, now_ms, applied=applied, refused=refused)

    async def _periodically(self, interval_ms: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except Exception:
                logger.exception("the transaction coordinator's housekeeping failed")

    # ---- loading and metadata ----

    async def _load(self, partition: int) -> Wait | None:
        def begin(loaded: list[Transaction]) -> None:
            if loaded:
                self._tasks.spawn(self._begin_completions(partition, loaded))

        return await self._log.load(partition, begin)

    async def _begin_completions(self, partition: int, loaded: list[Transaction]) -> None:
        undone = [transaction for transaction in loaded if transaction.metadata.state.is_prepared]
        async with self._log.beginning:
            turns = Turns()
            for transaction in undone:
                # No other transition can come between an outcome and its completion.
                await turns.step()
                if self._is_registered(transaction):
                    self._begin_completion(transaction)
        logger.info(
            "%s-%d: transactional ids loaded: %d, of which %d are being completed",
            TRANSACTION_TOPIC,
            partition,
            len(loaded),
            len(undone),
        )

    def leadership_changed(self) -> None:
        """Load partitions that this broker leads, and resign lost ones. Also called when missing logs are created."""
        lost = self._log.lost_partitions()
        for partition in lost:
            logger.info("%s-%d: this broker coordinates its transactional ids no longer", TRANSACTION_TOPIC, partition)
        self._log.resign(lost)
        self._loader.begin()

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        if any(topic.name == TRANSACTION_TOPIC for topic in delta.deleted):
            logger.warning("%s was deleted: all transactional ids are gone", TRANSACTION_TOPIC)
            self._log.forget_all()
        if any(topic.name == TRANSACTION_TOPIC for topic in (*delta.created, *delta.changed)):
            # After all subscribers: the replica manager may still have to create the logs.
            asyncio.get_running_loop().call_soon(self.leadership_changed)

    # ---- small parts ----

    def _check_available(self, transactional_id: str) -> None:
        if not transactional_id or len(transactional_id.encode()) > NAME_BYTES_MAX:
            raise KafkaError(ErrorCode.invalid_request, f"a transactional id has between 1 and {NAME_BYTES_MAX} bytes")
        if self._is_stopped:
            raise KafkaError(ErrorCode.coordinator_not_available, "the broker is being stopped")

    def _existing(self, transactional_id: str) -> Transaction | None:
        self._log.active_partition_of(transactional_id)
        return self._log.transactions.get(transactional_id)

    def _is_registered(self, transaction: Transaction) -> bool:
        """Whether a transaction, looked up in an earlier turn of the event loop, is still the present one of its id."""
        return self._log.transactions.get(transaction.transactional_id) is transaction

    def _known(self, transactional_id: str, producer: ProducerIdAndEpoch) -> Transaction:
        self._check_available(transactional_id)
        transaction = self._existing(transactional_id)
        if transaction is None:
            raise KafkaError(
                ErrorCode.invalid_producer_id_mapping,
                f"transactional id {transactional_id[:249]!r} is not known (producer {producer.producer_id})",
            )
        return transaction

    def _create(self, transactional_id: str, producer_id: int) -> Transaction:
        metadata = TransactionMetadata(producer_id, state=TransactionState.EMPTY, last_update_ms=self._clock.now_ms())
        transaction = self._log.transactions[transactional_id] = Transaction(transactional_id, metadata)
        return transaction
