"""What is known of a transactional id: the value that each of its transitions replaces as a whole. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from headwater.logtier.protocol.topic_partition import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1

PRODUCER_EPOCH_MAX: Final = 2**15 - 1

#: Levels of Kafka's feature transaction.version: from 1 on records have tagged fields, from 2 on each transaction has a
#: producer epoch of its own (KIP-890).
TRANSACTION_VERSION_CLASSIC: Final = 0
TRANSACTION_VERSION_FLEXIBLE: Final = 1
TRANSACTION_VERSION_WITH_EPOCH_BUMPS: Final = 2


class TransactionState(Enum):
    """Where a transactional id stands, as Kafka numbers and names it."""

    EMPTY = (0, "Empty")
    ONGOING = (1, "Ongoing")
    PREPARE_COMMIT = (2, "PrepareCommit")
    PREPARE_ABORT = (3, "PrepareAbort")
    COMPLETE_COMMIT = (4, "CompleteCommit")
    COMPLETE_ABORT = (5, "CompleteAbort")
    #: The id has expired and is being removed; never written.
    DEAD = (6, "Dead")
    #: A newer producer (or the time-out) ends the transaction: a stop on the way to PrepareAbort, never written.
    PREPARE_EPOCH_FENCE = (7, "PrepareEpochFence")

    def __init__(self, number: int, title: str) -> None:
        self.number = number
        self.title = title

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and the markers are on their way."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open: the id may expire, a transaction may begin."""
        return self in _IDLE


_IDLE: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})

STATES_BY_NUMBER: Final = {state.number: state for state in TransactionState}
STATES_BY_TITLE: Final = {state.title: state for state in TransactionState}

PREVIOUS_STATES: Final = {
    TransactionState.EMPTY: _IDLE,
    TransactionState.ONGOING: _IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    # Of an idle producer too: it may abort a transaction to which no partition was added yet (KIP-890).
    TransactionState.PREPARE_ABORT: _IDLE | {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _IDLE,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
}
"""The states that each one may be entered from."""


class ProducerIdAndEpoch(NamedTuple):
    """Which incarnation of a producer."""

    producer_id: int
    epoch: int


NO_PRODUCER: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """A transactional id at one moment.

    Attributes:
        previous_producer_id: The id before the last transition: a retry may still name it after a change of ids.
        next_producer_id: The id that the producer goes on with once the markers are written; -1 for the same.
        last_producer_epoch: The epoch before the last bump, for a retry of the request that bumped it (KIP-360). It is
            not in the log: such a retry is fenced when the coordinator was restarted in between.
        timeout_ms: How long a transaction may be open.
        partitions: What the transaction has written to.
        start_ms: Since when it is open.
        client_version: Level of transaction.version that the producer speaks.
    """

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int = 0
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    last_update_ms: int = NO_TIMESTAMP
    client_version: int = TRANSACTION_VERSION_CLASSIC

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The producer that may write now."""
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the producer needs a new id: the very last epoch is kept for fencing it."""
        return is_epoch_exhausted(self.producer_epoch)

    @property
    def has_epoch_bumps(self) -> bool:
        """Whether each transaction of this producer has an epoch of its own."""
        return self.client_version >= TRANSACTION_VERSION_WITH_EPOCH_BUMPS

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id was not used for so long (`transactional.id.expiration.ms`) and may be forgotten."""
        return self.state.is_idle and self.last_update_ms <= now_ms - expiration_ms

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether a transaction is open for longer than its producer asked for."""
        return self.state is TransactionState.ONGOING and self.start_ms + self.timeout_ms < now_ms


def is_epoch_exhausted(epoch: int) -> bool:
    """Whether a producer of this epoch cannot get another one under its id."""
    return epoch >= PRODUCER_EPOCH_MAX - 1
