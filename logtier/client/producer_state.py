"""State of an idempotent producer in one partition (KIP-98). No I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from crc32c import crc32c

from headwater.logtier.records.batch import (
    ATTRIBUTES,
    CRC,
    HEADER_BYTES,
    PRODUCER_FIELDS,
    PRODUCER_ID,
    TRANSACTIONAL,
    increment_sequence,
)

__all__ = ["PartitionSequencer", "PendingBatch", "ProducerIdentity", "seal_batch"]

# A broker remembers a producer's last five batches in a partition: with more in flight, retries would look new.
BATCHES_IN_FLIGHT_MAX = 5


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The sender of batches: a producer id, its epoch and, in a transaction, its transactional id.

    Picklable: several processes may send as one producer, if no two of them send to the same partition.
    `produce_version_max` restricts a transaction to the protocol of its beginning (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None
    produce_version_max: int | None = None


def seal_batch(batch: bytearray, producer: ProducerIdentity, base_sequence: int) -> None:
    """Writes the producer's fields into an encoded v2 batch, and the CRC-32C that covers them."""
    assert len(batch) >= HEADER_BYTES, "not a record batch"
    PRODUCER_FIELDS.pack_into(batch, PRODUCER_ID, producer.producer_id, producer.producer_epoch, base_sequence)
    if producer.transactional_id is not None:
        batch[ATTRIBUTES + 1] |= TRANSACTIONAL
    batch[CRC:ATTRIBUTES] = crc32c(memoryview(batch)[ATTRIBUTES:]).to_bytes(4, "big")


@dataclass(slots=True)
class PendingBatch:
    """A sealed batch in delivery; `deadline_s` (monotonic clock) bounds its retries."""

    topic: str
    partition: int
    data: bytearray
    record_count: int
    base_sequence: int
    order: int
    deadline_s: float


class PartitionSequencer:
    """Keeps a partition's batches in order through failures.

    Invariant: batches are in flight in sequence order, at most `BATCHES_IN_FLIGHT_MAX`. After a failure, no batch of
    this partition is sent until all batches in flight have responses; then the failed batches are sent again, first and
    in order. The broker recognises batches it has already (KIP-98): a retry never duplicates a record.

    No batch follows the first one before its acknowledgement. The broker may reject the first batch, because the leader
    of a new topic is not ready or the previous transaction is still being ended. Without state of the producer, the
    broker would accept the second batch as the first, and then never the first one.
    """

    def __init__(self, first_sequence: int = 0) -> None:
        self._queue: deque[PendingBatch] = deque()
        self._failed: list[PendingBatch] = []
        self._in_flight = 0
        self._node_id = -1
        self._next_sequence = first_sequence
        self._is_first_due = True
        self._next_order = 0

    @property
    def next_sequence(self) -> int:
        """Sequence number of the next added record."""
        return self._next_sequence

    @property
    def waiting(self) -> bool:
        """Whether batches are queued."""
        return bool(self._queue)

    @property
    def unfinished(self) -> int:
        """Number of batches not yet delivered."""
        return len(self._queue) + len(self._failed) + self._in_flight

    def sendable_to(self, node_id: int) -> bool:
        """Whether `take` may return a batch for this broker: never while batches are in flight to another broker."""
        if not self._queue or self._failed or self._in_flight >= (1 if self._is_first_due else BATCHES_IN_FLIGHT_MAX):
            return False
        return not self._in_flight or self._node_id == node_id

    def add(self, batch: PendingBatch) -> None:
        """Queues a batch and assigns the next sequence numbers to its records."""
        batch.base_sequence = self._next_sequence
        batch.order = self._next_order
        self._next_order += 1
        self._next_sequence = increment_sequence(self._next_sequence, batch.record_count)
        self._queue.append(batch)

    def take(self, node_id: int) -> PendingBatch:
        """Takes the next batch to send to this broker."""
        assert self.sendable_to(node_id)
        self._in_flight += 1
        self._node_id = node_id
        return self._queue.popleft()

    def peek_bytes(self) -> int:
        """Returns the size of the next batch in bytes."""
        return len(self._queue[0].data)

    def delivered(self) -> None:
        """Removes an acknowledged batch."""
        self._is_first_due = False
        self._in_flight -= 1
        assert self._in_flight >= 0
        self._requeue()

    def failed(self, batch: PendingBatch) -> None:
        """Queues a batch in flight again."""
        self._in_flight -= 1
        assert self._in_flight >= 0
        self._failed.append(batch)
        self._requeue()

    @property
    def draining(self) -> bool:
        """Whether a batch failed while later ones, which fail in consequence, are still in flight."""
        return bool(self._failed)

    def _requeue(self) -> None:
        if self._failed and not self._in_flight:
            self._failed.sort(key=lambda batch: batch.order, reverse=True)
            self._queue.extendleft(self._failed)
            self._failed.clear()
