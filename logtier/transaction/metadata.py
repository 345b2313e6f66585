"""Metadata of a transactional id: a value that each transition replaces as a whole. Pure."""

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
    """State of a transactional id, with Kafka's numbers and names."""

    EMPTY = (0, "Empty")
    ONGOING = (1, "Ongoing")
    PREPARE_COMMIT = (2, "PrepareCommit")
    PREPARE_ABORT = (3, "PrepareAbort")
    COMPLETE_COMMIT = (4, "CompleteCommit")
    COMPLETE_ABORT = (5, "CompleteAbort")
    #: The id has expired and is being removed. Never written to the log.
    DEAD = (6, "Dead")
    #: A newer producer or the timeout ends the transaction; PrepareAbort follows. Never written to the log.
    PREPARE_EPOCH_FENCE = (7, "PrepareEpochFence")

    def __init__(self, number: int, title: str) -> None:
        self.number = number
        self.title = title

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and its markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open: the id may expire, and a transaction may begin."""
        return self in _IDLE


_IDLE: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})

STATES_BY_NUMBER: Final = {state.number: state for state in TransactionState}
STATES_BY_TITLE: Final = {state.title: state for state in TransactionState}

PREVIOUS_STATES: Final = {
    TransactionState.EMPTY: _IDLE,
    TransactionState.ONGOING: _IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    # Also without an open transaction: an idle producer may abort before it adds a partition (KIP-890).
    TransactionState.PREPARE_ABORT: _IDLE | {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _IDLE,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
}
"""The states from which each state may be entered."""


class ProducerIdAndEpoch(NamedTuple):
    """One incarnation of a producer."""

    producer_id: int
    epoch: int


NO_PRODUCER: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """A transactional id at one moment.

    Attributes:
        previous_producer_id: Id before the last transition; a retry may still name it after a change of ids.
        next_producer_id: Id of the producer after the markers are written; -1: unchanged.
        last_producer_epoch: Epoch before the last bump, for a retry of the request that bumped it (KIP-360). The log
            does not hold this epoch: after a restart of the coordinator, such a retry is fenced.
        timeout_ms: Maximum duration of a transaction.
        partitions: Partitions of the transaction.
        start_ms: Start of the transaction.
        client_version: Level of transaction.version that the producer uses.
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
        """The producer id and epoch that may write now."""
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the producer needs a new id: the last epoch of an id is reserved for fencing."""
        return is_epoch_exhausted(self.producer_epoch)

    @property
    def has_epoch_bumps(self) -> bool:
        """Whether each transaction of this producer has an epoch of its own (KIP-890)."""
        return self.client_version >= TRANSACTION_VERSION_WITH_EPOCH_BUMPS

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id was unused for `transactional.id.expiration.ms` and may be removed."""
        return self.state.is_idle and self.last_update_ms <= now_ms - expiration_ms

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether the open transaction exceeds its producer's timeout."""
        return self.state is TransactionState.ONGOING and self.start_ms + self.timeout_ms < now_ms


def is_epoch_exhausted(epoch: int) -> bool:
    """Whether no further epoch is available under the producer id."""
    return epoch >= PRODUCER_EPOCH_MAX - 1
