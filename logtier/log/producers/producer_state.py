"""The producer states of a partition: duplicates, gaps, transactions (KIP-98, KIP-360, KIP-890). Pure."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from headwater.logtier.log.segments.transaction_index import AbortedTransaction
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import NO_PRODUCER_ID, NO_SEQUENCE, EndTransactionMarker, RecordBatchHeader

# Maximum number of requests in flight of an idempotent producer: older batches are never retried.
BATCHES_PER_PRODUCER: Final = 5

NO_OFFSET: Final = -1
NO_COORDINATOR_EPOCH: Final = -1

# From this transaction.version on, each transaction has its own epoch, and its marker the next one (KIP-890).
TRANSACTION_VERSION_WITH_EPOCH_BUMPS: Final = 2

_SEQUENCE_MAX: Final = 2**31 - 1


class BatchMetadata(NamedTuple):
    """One appended batch of a producer."""

    base_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_offset(self) -> int:
        """Offset of the batch's first record."""
        return self.last_offset - self.offset_delta


class Verification:
    """A pending check with the transaction coordinator that a transaction includes the partition (KIP-890).

    The append passes the same object after the coordinator's confirmation. It is valid for the first batch only, and a
    marker invalidates it: the confirmation may concern a transaction that has ended since. If each transaction has its
    own epoch, the marker of the transaction before does not: a producer begins the next one while markers are written.
    """

    __slots__ = ("epoch", "is_epoch_bumped", "lowest_sequence", "started_ms")

    def __init__(self, epoch: int, sequence: int, started_ms: int, *, is_epoch_bumped: bool) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.started_ms = started_ms
        #: Whether each transaction of the producer has its own epoch, and so begins with sequence 0.
        self.is_epoch_bumped = is_epoch_bumped

    def outlasts_marker(self, marker_epoch: int) -> bool:
        """Whether it concerns a transaction after the one that a marker ends, which has the epoch of the next one."""
        return self.is_epoch_bumped and self.epoch >= marker_epoch

    def note(self, epoch: int, sequence: int, *, is_epoch_bumped: bool) -> None:
        """Record another batch awaiting verification: the batch with the lowest sequence must be appended first."""
        self.is_epoch_bumped = is_epoch_bumped and (self.is_epoch_bumped or epoch > self.epoch)
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


class ProducerState:
    """One producer in one partition: its epoch and its last batches, oldest first. Invariant: sequences contiguous."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp_ms", "transaction_first_offset")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_PER_PRODUCER)
        self.last_timestamp_ms = -1
        #: Coordinator epoch of the last marker.
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        #: First offset of the ongoing transaction in this partition, NO_OFFSET without one.
        self.transaction_first_offset = NO_OFFSET

    def move_to_epoch(self, epoch: int) -> None:
        """Set the epoch; sequences restart with a new epoch."""
        if self.epoch != epoch:
            self.epoch = epoch
            self.batches.clear()

    def original(self, base_sequence: int, last_offset_delta: int) -> BatchMetadata | None:
        """Return the batch that this one duplicates, or None."""
        last_sequence = (base_sequence + last_offset_delta) & _SEQUENCE_MAX
        for batch in self.batches:
            if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                return batch
        return None


class ProducerStates:
    """The states of all producers with an id in one partition.

    Invariants: per (producer id, epoch) the accepted sequences are contiguous, and a retry of any of the last five
    batches returns the offsets of the first attempt; a producer has at most one ongoing transaction, which only a
    marker ends; every transaction is verified with the coordinator before its first append. Apart from pending
    verifications, the state equals a replay of the log after the last snapshot (`<offset>.snapshot` in the partition's
    folder). `Log` and `recovery` change it; other modules read it.
    """

    __slots__ = ("_ended", "_open", "_producers", "_verifications")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerState] = {}
        #: Producer ids of ongoing transactions by first offset, ascending.
        self._open: dict[int, int] = {}
        #: Ended transactions (first offset, marker's offset) whose marker may not be replicated yet.
        self._ended: deque[tuple[int, int]] = deque()
        self._verifications: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, ProducerState]]:
        return iter(self._producers.items())

    def get(self, producer_id: int) -> ProducerState | None:
        """Return the state of a producer, or None."""
        return self._producers.get(producer_id)

    def restore(self, states: Iterable[tuple[int, ProducerState]]) -> None:
        """Load the producers of a snapshot."""
        self._producers = dict(states)
        self._open = {
            first_offset: producer_id
            for first_offset, producer_id in sorted(
                (state.transaction_first_offset, producer_id) for producer_id, state in self._producers.items()
            )
            if first_offset != NO_OFFSET
        }

    # -- checking

    def check(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        last_offset_delta: int,
        log_end_offset: int,
        *,
        is_transactional: bool = False,
    ) -> BatchMetadata | None:
        """Check a batch before its append; return the original of a duplicate, None if the batch is next in sequence.

        A producer unknown here (new or expired) may begin with any sequence number (KIP-360). Only a log that never had
        a record wants the first: a batch before this one was refused, and comes again (KAFKA-15591).

        Raises:
            KafkaError: invalid_producer_epoch for a fenced producer, out_of_order_sequence_number for a gap,
                invalid_txn_state for a batch outside the producer's ongoing transaction.
        """
        state = self._producers.get(producer_id)
        if state is None:
            if base_sequence > 0 and log_end_offset == 0:
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {producer_id} (epoch {producer_epoch}) sent sequence {base_sequence} to a log without "
                    "records, expected is 0",
                )
            return None
        epoch = state.epoch
        if producer_epoch == epoch:
            batches = state.batches
            expected = (batches[-1].last_sequence + 1) & _SEQUENCE_MAX if batches else 0
            if base_sequence != expected:
                original = state.original(base_sequence, last_offset_delta)
                if original is not None:
                    return original
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {producer_id} (epoch {epoch}) sent sequence {base_sequence}, expected is {expected}",
                )
        elif producer_epoch < epoch:
            raise _fenced(producer_id, producer_epoch, epoch)
        elif base_sequence != 0:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {producer_id} begins its epoch {producer_epoch} with sequence {base_sequence} instead of 0",
            )
        if state.transaction_first_offset != NO_OFFSET and not is_transactional:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"producer {producer_id} sent records outside its ongoing transaction",
            )
        return None

    def check_transactional(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        last_offset_delta: int,
        log_end_offset: int,
        verification: Verification | None,
    ) -> BatchMetadata | None:
        """Check a transactional batch as `check` does.

        The transaction must be ongoing in this partition or verified with the coordinator (`verification`). A batch
        without a sequence number comes from a coordinator and is never a duplicate.

        Raises:
            KafkaError: As `check`; invalid_txn_state for an unverified transaction, not_enough_replicas if the
                verification has become void.
        """
        state = self._producers.get(producer_id)
        is_open = False
        if state is not None:
            if producer_epoch < state.epoch:
                # Checked first: a producer recovers from this error, but not from the next one.
                raise _fenced(producer_id, producer_epoch, state.epoch)
            if producer_epoch == state.epoch:
                is_open = state.transaction_first_offset != NO_OFFSET
                original = state.original(base_sequence, last_offset_delta)
                if original is not None:
                    return original
        if not is_open:
            pending = self._verifications.get(producer_id)
            if pending is None or pending is not verification:
                if verification is not None and verification.is_epoch_bumped:
                    # The partition was cut or led by another broker meanwhile. No batch of an ended transaction comes
                    # here, as its epoch is fenced: the producer may try again.
                    raise KafkaError(
                        ErrorCode.not_enough_replicas,
                        f"producer {producer_id} (epoch {producer_epoch}): its transaction must be verified again",
                    )
                raise KafkaError(
                    ErrorCode.invalid_txn_state,
                    f"producer {producer_id} (epoch {producer_epoch}) has no open transaction in this partition",
                )
            if (pending.is_epoch_bumped and base_sequence > 0 and state is None) or (
                base_sequence > pending.lowest_sequence
            ):
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {producer_id} begins its transaction with sequence {base_sequence}, "
                    f"{0 if pending.is_epoch_bumped else pending.lowest_sequence} comes first",
                )
        if base_sequence == NO_SEQUENCE:
            return None
        return self.check(
            producer_id, producer_epoch, base_sequence, last_offset_delta, log_end_offset, is_transactional=True
        )

    def begin_verification(
        self, producer_id: int, producer_epoch: int, base_sequence: int, now_ms: int, *, is_epoch_bumped: bool
    ) -> Verification | None:
        """Return the verification to pass to the append; None if the transaction is ongoing here and needs none.

        Raises:
            KafkaError: invalid_producer_epoch for a fenced producer.
        """
        state = self._producers.get(producer_id)
        if state is not None:
            if producer_epoch < state.epoch:
                raise _fenced(producer_id, producer_epoch, state.epoch)
            if producer_epoch == state.epoch and state.transaction_first_offset != NO_OFFSET:
                return None
        verification = self._verifications.get(producer_id)
        if verification is None:
            verification = Verification(producer_epoch, base_sequence, now_ms, is_epoch_bumped=is_epoch_bumped)
            self._verifications[producer_id] = verification
        else:
            verification.note(producer_epoch, base_sequence, is_epoch_bumped=is_epoch_bumped)
        return verification

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> bool:
        """Check a marker before its append; return whether it repeats the last marker and is not to be appended.

        Raises:
            KafkaError: invalid_producer_epoch for the marker of an earlier transaction, which must not end the ongoing
                one; transaction_coordinator_fenced for a marker of a former coordinator.
        """
        state = self._producers.get(producer_id)
        if state is None:
            return False
        has_own_epoch = transaction_version >= TRANSACTION_VERSION_WITH_EPOCH_BUMPS
        is_open = state.transaction_first_offset != NO_OFFSET
        if producer_epoch < state.epoch or (has_own_epoch and is_open and producer_epoch == state.epoch):
            raise _fenced(producer_id, producer_epoch, state.epoch)
        if coordinator_epoch < state.coordinator_epoch:
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced,
                f"producer {producer_id}: coordinator epoch {coordinator_epoch} is fenced by epoch "
                f"{state.coordinator_epoch}",
            )
        # An ongoing transaction was rejected above; batches of this epoch mean that the marker is not the last one.
        return (
            has_own_epoch
            and producer_epoch == state.epoch
            and not state.batches
            and state.coordinator_epoch != NO_COORDINATOR_EPOCH
        )

    # -- following the log

    def update(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        last_offset_delta: int,
        last_offset: int,
        timestamp_ms: int,
        *,
        is_transactional: bool = False,
    ) -> None:
        """Apply an appended batch, checked before or read from the log."""
        state = self._producers.get(producer_id)
        if state is None:
            state = self._producers[producer_id] = ProducerState(producer_epoch)
        elif state.epoch != producer_epoch:
            state.move_to_epoch(producer_epoch)
        if base_sequence != NO_SEQUENCE:
            state.batches.append(
                BatchMetadata(
                    base_sequence,
                    (base_sequence + last_offset_delta) & _SEQUENCE_MAX,
                    last_offset,
                    last_offset_delta,
                    timestamp_ms,
                )
            )
        state.last_timestamp_ms = timestamp_ms
        if is_transactional:
            self._verifications.pop(producer_id, None)
            if state.transaction_first_offset == NO_OFFSET:
                state.transaction_first_offset = first_offset = last_offset - last_offset_delta
                self._open[first_offset] = producer_id

    def end_transaction(
        self, producer_id: int, producer_epoch: int, marker: EndTransactionMarker, offset: int, timestamp_ms: int
    ) -> AbortedTransaction | None:
        """Apply an appended marker; return the transaction if it is aborted and has records here."""
        state = self._producers.get(producer_id)
        if state is None:
            state = self._producers[producer_id] = ProducerState(producer_epoch)
        state.move_to_epoch(producer_epoch)
        state.coordinator_epoch = marker.coordinator_epoch
        state.last_timestamp_ms = timestamp_ms
        verification = self._verifications.get(producer_id)
        if verification is not None and not verification.outlasts_marker(producer_epoch):
            del self._verifications[producer_id]
        first_offset = state.transaction_first_offset
        if first_offset == NO_OFFSET:
            return None
        state.transaction_first_offset = NO_OFFSET
        del self._open[first_offset]
        self._ended.append((first_offset, offset))
        if marker.committed:
            return None
        return AbortedTransaction(producer_id, first_offset, offset, next(iter(self._open), offset + 1))

    def replay(
        self, header: RecordBatchHeader, marker: EndTransactionMarker | None = None
    ) -> AbortedTransaction | None:
        """Apply a batch read from the log, with its marker if it is a control batch; return the transaction it aborts.

        A batch without a producer id has no effect.
        """
        if header.producer_id == NO_PRODUCER_ID:
            return None
        if header.is_control:
            if marker is None:
                return None
            return self.end_transaction(
                header.producer_id, header.producer_epoch, marker, header.base_offset, header.max_timestamp_ms
            )
        if header.base_sequence != NO_SEQUENCE or header.is_transactional:
            self.update(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_offset_delta,
                header.last_offset,
                header.max_timestamp_ms,
                is_transactional=header.is_transactional,
            )
        return None

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset: the first offset of the first transaction without a replicated end.

        Without such a transaction it is the high watermark.
        """
        ended = self._ended
        if not ended and not self._open:
            return high_watermark
        self.settle(high_watermark)
        stable = high_watermark
        for first_offset, _ in ended:
            stable = min(stable, first_offset)
        for first_offset in self._open:
            return min(stable, first_offset)
        return stable

    def settle(self, high_watermark: int) -> None:
        """Remove the ended transactions whose marker is replicated: the high watermark never falls."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Remove the producers inactive for `expiration_ms` (`producer.id.expiration.ms`); return their number.

        A producer with an ongoing transaction stays until its marker.
        """
        expired = [
            producer_id
            for producer_id, state in self._producers.items()
            if now_ms - state.last_timestamp_ms >= expiration_ms and state.transaction_first_offset == NO_OFFSET
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        for producer_id, verification in list(self._verifications.items()):
            if now_ms - verification.started_ms >= expiration_ms:
                del self._verifications[producer_id]
        return len(expired)


def _fenced(producer_id: int, epoch: int, newer_epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.invalid_producer_epoch,
        f"producer {producer_id} has epoch {epoch}, a newer one has epoch {newer_epoch}",
    )
