"""State machine of one transactional id: requests in, metadata to write out. Pure."""

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.transaction.metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PREVIOUS_STATES,
    PRODUCER_EPOCH_MAX,
    TRANSACTION_VERSION_WITH_EPOCH_BUMPS,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
    is_epoch_exhausted,
)

_COMPLETE: Final = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


class ProducerIdNeededError(Exception):
    """The epochs of the present producer id are used up: the caller repeats the call with a new id."""


class Transaction:
    """A transactional id, its present metadata and the transition under way.

    The method of a request prepares a transition and returns the metadata to write. When the metadata is in the log,
    `complete` adopts it, else `cancel` drops it. Invariants: one transition at a time; a state is entered only from its
    `PREVIOUS_STATES`; an epoch never decreases under one producer id; a request of a fenced producer changes nothing.
    """

    __slots__ = ("_pending", "metadata", "transactional_id")

    def __init__(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        self.transactional_id = transactional_id
        self.metadata = metadata
        self._pending: TransactionMetadata | None = None

    @property
    def has_pending_transition(self) -> bool:
        """Whether a transition is being written."""
        return self._pending is not None

    @property
    def is_expiring(self) -> bool:
        """Whether the id is being removed."""
        return self._pending is not None and self._pending.state is TransactionState.DEAD

    @property
    def is_new(self) -> bool:
        """Whether no producer was initialised with this id."""
        return self.metadata.producer_epoch == NO_PRODUCER_EPOCH

    # ---- transitions ----

    def complete(self) -> None:
        """Adopt the transition, which is in the log."""
        assert self._pending is not None
        self.metadata = self._pending
        self._pending = None

    def cancel(self) -> None:
        """Drop the transition, which is not in the log."""
        self._pending = None

    def _prepare(self, metadata: TransactionMetadata) -> TransactionMetadata:
        present = self.metadata
        allowed = PREVIOUS_STATES[metadata.state]
        assert self._pending is None, f"{self.transactional_id}: {metadata.state} while {self._pending} is under way"
        assert present.state in allowed, f"{self.transactional_id}: {present.state} to {metadata.state}"
        assert metadata.state is TransactionState.DEAD or 0 <= metadata.producer_epoch <= PRODUCER_EPOCH_MAX
        assert metadata.producer_id != present.producer_id or metadata.producer_epoch >= present.producer_epoch
        self._pending = replace(metadata, previous_producer_id=present.producer_id)
        return self._pending

    # ---- InitProducerId ----

    def init_producer(
        self, expected: ProducerIdAndEpoch | None, timeout_ms: int, now_ms: int, *, new_producer_id: int | None = None
    ) -> TransactionMetadata | None:
        """Initialise a producer, or initialise it again after an error with its present id and epoch (KIP-360).

        Returns:
            The metadata to write, with the id and epoch of the response. None if a transaction is open: the caller
            aborts it first (`fence`), and the producer retries.

        Raises:
            KafkaError: concurrent_transactions, producer_fenced.
            ProducerIdNeededError: all epochs are used up.
        """
        present = self.metadata
        if self._pending is not None:
            raise _concurrent(self.transactional_id)
        if expected is not None and not self._is_known(expected):
            raise _fenced(self.transactional_id, expected, present)
        if present.state.is_prepared:
            raise _concurrent(self.transactional_id)
        if present.state is TransactionState.ONGOING:
            return None
        begun = replace(
            present,
            state=TransactionState.EMPTY,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            last_update_ms=now_ms,
        )
        if present.is_epoch_exhausted and (
            expected is None or expected.epoch in (present.producer_epoch, present.last_producer_epoch)
        ):
            if new_producer_id is None:
                raise ProducerIdNeededError
            last_epoch = NO_PRODUCER_EPOCH if expected is None else expected.epoch
            return self._prepare(
                replace(begun, producer_id=new_producer_id, producer_epoch=0, last_producer_epoch=last_epoch)
            )
        return self._prepare(self._with_next_epoch(begun, expected))

    def _is_known(self, expected: ProducerIdAndEpoch) -> bool:
        """Whether a producer names the present producer id, or in a retry the previous one with its last epoch."""
        present = self.metadata
        is_retry_of_rotation = expected.producer_id == present.previous_producer_id and is_epoch_exhausted(
            expected.epoch
        )
        return self.is_new or expected.producer_id == present.producer_id or is_retry_of_rotation

    def _with_next_epoch(self, begun: TransactionMetadata, expected: ProducerIdAndEpoch | None) -> TransactionMetadata:
        epoch = self.metadata.producer_epoch
        if expected is None:
            return replace(begun, producer_epoch=epoch + 1, last_producer_epoch=NO_PRODUCER_EPOCH)
        if self.is_new or expected.epoch == epoch:
            return replace(begun, producer_epoch=epoch + 1, last_producer_epoch=epoch)
        if expected.epoch == self.metadata.last_producer_epoch:
            return begun  # The response to the first attempt was lost: the retry gets the same epoch.
        raise _fenced(self.transactional_id, expected, self.metadata)

    # ---- adding partitions ----

    def add_partitions(
        self,
        producer: ProducerIdAndEpoch,
        partitions: AbstractSet[TopicPartition],
        now_ms: int,
        *,
        client_version: int,
    ) -> TransactionMetadata | None:
        """Add partitions to the transaction; the first ones begin it.

        Returns:
            The metadata to write; None if the transaction includes the partitions already.

        Raises:
            KafkaError: invalid_producer_id_mapping, producer_fenced, concurrent_transactions.
        """
        present = self.metadata
        self._check_producer(producer)
        if self._pending is not None or present.state.is_prepared:
            raise _concurrent(self.transactional_id)
        is_open = present.state is TransactionState.ONGOING
        if is_open and partitions <= present.partitions:
            return None
        return self._prepare(
            replace(
                present,
                state=TransactionState.ONGOING,
                partitions=present.partitions | partitions,
                start_ms=present.start_ms if is_open else now_ms,
                last_update_ms=now_ms,
                client_version=client_version,
            )
        )

    def verify(self, producer: ProducerIdAndEpoch, partitions: AbstractSet[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions that are not part of the transaction (KIP-890).

        Raises:
            KafkaError: invalid_producer_id_mapping, producer_fenced, concurrent_transactions.
        """
        self._check_producer(producer)
        if self.metadata.state.is_prepared:
            raise _concurrent(self.transactional_id)
        return set(partitions - self.metadata.partitions)

    def includes(self, producer: ProducerIdAndEpoch, topic_partition: TopicPartition) -> bool:
        """Whether the producer's transaction is open and includes this partition.

        Raises:
            KafkaError: invalid_producer_id_mapping, producer_fenced.
        """
        self._check_producer(producer)
        present = self.metadata
        is_open = present.state is TransactionState.ONGOING and self._pending is None
        return is_open and topic_partition in present.partitions

    def _check_producer(self, producer: ProducerIdAndEpoch) -> None:
        present = self.metadata
        if present.producer_id != producer.producer_id:
            raise _not_mapped(self.transactional_id, producer)
        if present.producer_epoch != producer.epoch:
            raise _fenced(self.transactional_id, producer, present)

    # ---- EndTxn ----

    def end(
        self,
        producer: ProducerIdAndEpoch,
        now_ms: int,
        *,
        commit: bool,
        client_version: int,
        new_producer_id: int | None = None,
    ) -> TransactionMetadata | None:
        """Commit or abort the transaction.

        Returns:
            The outcome to write, before any marker; None for a retry of a request that has succeeded.

        Raises:
            KafkaError: invalid_producer_id_mapping, producer_fenced, concurrent_transactions, invalid_txn_state.
            ProducerIdNeededError: all epochs are used up (transaction.version 2).
        """
        has_bumps = client_version >= TRANSACTION_VERSION_WITH_EPOCH_BUMPS
        is_retry = has_bumps and self._is_retry_of_end(producer)
        self._check_ending(producer, has_bumps=has_bumps, is_retry=is_retry)
        state = self.metadata.state
        if state.is_prepared:
            if commit is (state is TransactionState.PREPARE_COMMIT):
                raise _concurrent(self.transactional_id)
            raise self._invalid_end(commit)
        if state is not TransactionState.ONGOING:
            is_done = state is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
            if is_done and (is_retry or not has_bumps):
                return None
            if commit or is_retry or not has_bumps:
                raise self._invalid_end(commit)
            # With an epoch for each transaction, this one is new and has no partitions: the abort succeeds.
        return self._prepare_outcome(
            now_ms, commit=commit, client_version=client_version, new_producer_id=new_producer_id
        )

    def _is_retry_of_end(self, producer: ProducerIdAndEpoch) -> bool:
        """Whether a producer names the epoch that its last EndTxn ended, because it has not seen the response."""
        present = self.metadata
        is_rotated = (
            present.previous_producer_id == producer.producer_id
            and present.producer_id != producer.producer_id
            and producer.epoch == PRODUCER_EPOCH_MAX - 1
            and present.producer_epoch == 0
        )
        is_bumped = present.producer_id == producer.producer_id and present.producer_epoch == producer.epoch + 1
        return is_rotated or is_bumped

    def _check_ending(self, producer: ProducerIdAndEpoch, *, has_bumps: bool, is_retry: bool) -> None:
        present = self.metadata
        is_rotated_retry = is_retry and present.producer_id != producer.producer_id
        if present.producer_id != producer.producer_id and not is_rotated_retry:
            raise _not_mapped(self.transactional_id, producer)
        is_current = producer.epoch == present.producer_epoch
        if not has_bumps:
            is_valid = is_current
        elif present.state.is_prepared:
            # The outcome has bumped the epoch: the present epoch belongs to the next transaction.
            is_valid = is_retry and not is_rotated_retry
        elif present.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
            is_valid = is_retry or is_current
        else:
            is_valid = is_current
        if not is_valid:
            raise _fenced(self.transactional_id, producer, present)
        if self._pending is not None:
            raise _concurrent(self.transactional_id)

    def _invalid_end(self, commit: bool) -> KafkaError:
        return KafkaError(
            ErrorCode.invalid_txn_state,
            f"transactional id {self.transactional_id[:249]!r} is in state {self.metadata.state.title} and cannot be "
            f"{'committed' if commit else 'aborted'}",
        )

    def fence(self, now_ms: int) -> TransactionMetadata:
        """Abort the open transaction and fence its producer, for a newer producer or after the timeout."""
        assert self._pending is None
        assert self.metadata.state in PREVIOUS_STATES[TransactionState.PREPARE_EPOCH_FENCE]
        return self._prepare_outcome(
            now_ms, commit=False, client_version=TRANSACTION_VERSION_WITH_EPOCH_BUMPS, is_fencing=True
        )

    def _prepare_outcome(
        self,
        now_ms: int,
        *,
        commit: bool,
        client_version: int,
        is_fencing: bool = False,
        new_producer_id: int | None = None,
    ) -> TransactionMetadata:
        present = self.metadata
        is_open = present.state is TransactionState.ONGOING
        outcome = replace(
            present,
            state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            next_producer_id=NO_PRODUCER_ID,
            partitions=present.partitions if is_open else frozenset(),
            start_ms=present.start_ms if is_open else now_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )
        if client_version < TRANSACTION_VERSION_WITH_EPOCH_BUMPS:
            return self._prepare(outcome)
        if present.is_epoch_exhausted and not is_fencing:
            if new_producer_id is None:
                raise ProducerIdNeededError
            outcome = replace(outcome, next_producer_id=new_producer_id)
        return self._prepare(
            replace(
                outcome,
                # The last epoch has no successor: the next producer gets a new id.
                producer_epoch=min(present.producer_epoch + 1, PRODUCER_EPOCH_MAX),
                last_producer_epoch=present.producer_epoch,
            )
        )

    def finish(self, now_ms: int) -> TransactionMetadata:
        """Return the metadata to write after all markers of the outcome are written."""
        present = self.metadata
        finished = replace(
            present,
            state=_COMPLETE[present.state],
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            last_update_ms=now_ms,
        )
        if present.has_epoch_bumps and present.next_producer_id != NO_PRODUCER_ID:
            finished = replace(finished, producer_id=present.next_producer_id, producer_epoch=0)
        return self._prepare(finished)

    # ---- expiry ----

    def expire(self) -> None:
        """Begin to remove the id: no other transition may begin until its tombstone is written or refused."""
        self._prepare(replace(self.metadata, state=TransactionState.DEAD, partitions=frozenset()))


def _concurrent(transactional_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.concurrent_transactions, f"transactional id {transactional_id[:249]!r} is ending a transaction"
    )


def _not_mapped(transactional_id: str, producer: ProducerIdAndEpoch) -> KafkaError:
    return KafkaError(
        ErrorCode.invalid_producer_id_mapping,
        f"producer {producer.producer_id} is not the one of transactional id {transactional_id[:249]!r}",
    )


def _fenced(transactional_id: str, producer: ProducerIdAndEpoch, present: TransactionMetadata) -> KafkaError:
    return KafkaError(
        ErrorCode.producer_fenced,
        f"transactional id {transactional_id[:249]!r}: producer {producer.producer_id} with epoch {producer.epoch} is "
        f"fenced, {present.producer_id} with epoch {present.producer_epoch} is the present one",
    )
