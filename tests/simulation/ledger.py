"""What transactional producers did, and what a read_committed reader may therefore see."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.history import InvariantError


class TransactionOutcome(Enum):
    """What a producer knows of the end of its transaction."""

    OPEN = auto()
    #: A commit was asked for, and not answered.
    UNKNOWN = auto()
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(slots=True, eq=False)
class SimulatedTransaction:
    """The records of one transaction, whatever became of their sends, and the offset that it commits for a group."""

    producer: str
    number: int
    values: dict[bytes, TopicPartition] = field(default_factory=dict)
    acknowledged: set[bytes] = field(default_factory=set)
    commits_offset: bool = False
    outcome: TransactionOutcome = TransactionOutcome.OPEN

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.producer} ({self.outcome.name})"


@dataclass(slots=True)
class Ledger:
    """All transactions of a run, and the records that a read_committed reader saw.

    Invariants: no record of an open or aborted transaction is read, no record twice, and of each transaction all that
    was acknowledged, or nothing.
    """

    by_value: dict[bytes, SimulatedTransaction] = field(default_factory=dict)
    by_producer: dict[str, list[SimulatedTransaction]] = field(default_factory=dict)
    read: dict[bytes, tuple[TopicPartition, int]] = field(default_factory=dict)

    def begin(self, producer: str) -> SimulatedTransaction:
        """A producer begins its next transaction."""
        of_producer = self.by_producer.setdefault(producer, [])
        transaction = SimulatedTransaction(producer, len(of_producer))
        of_producer.append(transaction)
        return transaction

    def send(self, transaction: SimulatedTransaction, key: TopicPartition, value: bytes) -> None:
        """A record is about to be sent."""
        transaction.values[value] = key
        self.by_value[value] = transaction

    def see(self, key: TopicPartition, offset: int, value: bytes) -> None:
        """A read_committed reader read a record."""
        transaction = self.by_value.get(value)
        if transaction is None:
            raise InvariantError(f"{key}: {value!r} at offset {offset} was never sent")
        if transaction.outcome in (TransactionOutcome.OPEN, TransactionOutcome.ABORTED):
            raise InvariantError(f"{key}: a reader of committed records saw {value!r} at {offset} of {transaction}")
        if self.read.setdefault(value, (key, offset)) != (key, offset):
            raise InvariantError(f"{key}: {value!r} is at offset {offset} and at {self.read[value]}")

    def check_end(self) -> None:
        """Check that each transaction is whole, when all has been read to the end."""
        for transaction in [each for of_producer in self.by_producer.values() for each in of_producer]:
            seen = {value for value in transaction.values if value in self.read}
            is_whole = transaction.acknowledged <= seen
            if transaction.outcome is TransactionOutcome.COMMITTED and not is_whole:
                missing = sorted(transaction.acknowledged - seen)
                raise InvariantError(f"{transaction}: {missing} of {len(transaction.acknowledged)} cannot be read")
            if seen and not is_whole:
                raise InvariantError(f"{transaction}: only {sorted(seen)} of {sorted(transaction.values)} can be read")

    def possible_offsets(self, producer: str) -> set[int]:
        """Return the offsets that a producer's group may have: the last committed one, or of an unknown commit since.

        A group without any has the offset -1.
        """
        possible = {-1}
        for transaction in self.by_producer.get(producer, []):
            if transaction.commits_offset and transaction.outcome is TransactionOutcome.COMMITTED:
                possible = {transaction.number}
            elif transaction.commits_offset and transaction.outcome is TransactionOutcome.UNKNOWN:
                possible.add(transaction.number)
        return possible
