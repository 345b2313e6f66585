"""What an idempotent producer must remember of one partition, without I/O."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

from crc32c import crc32c

from headwater.logtier.records.batch import (
    ATTRIBUTES,
    CRC,
    HEADER_BYTES,
    PRODUCER_ID,
    TRANSACTIONAL,
    increment_sequence,
)

__all__ = ["PartitionSequencer", "PendingBatch", "ProducerIdentity", "seal_batch"]

# A broker remembers the last five batches of a producer in a partition; more in flight could not be told from new ones.
BATCHES_IN_FLIGHT_MAX = 5

_PRODUCER = struct.Struct(">qhi")


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Who sends batches: a producer id, its epoch and, for a transaction's batches, its transactional id.

    Picklable: several processes may send as one producer, as long as no two send to the same partition.
    `produce_version_max` keeps a transaction to the protocol it was begun with (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None
    produce_version_max: int | None = None


def seal_batch(batch: bytearray, producer: ProducerIdentity, base_sequence: int) -> None:
    """Writes the producer's fields into an encoded v2 batch, and the CRC-32C that covers them."""
    assert len(batch) >= HEADER_BYTES, "not a record batch"
    _PRODUCER.pack_into(batch, PRODUCER_ID, producer.producer_id, producer.producer_epoch, base_sequence)
    if producer.transactional_id is not None:
        batch[ATTRIBUTES + 1] |= TRANSACTIONAL
    batch[CRC:ATTRIBUTES] = crc32c(memoryview(batch)[ATTRIBUTES:]).to_bytes(4, "big")


@dataclass(slots=True)
class PendingBatch:
    """A sealed batch on its way; `deadline_s` on the monotonic clock bounds its retries."""

    topic: str
    partition: int
    data: bytearray
    record_count: int
    base_sequence: int
    order: int
    deadline_s: float


class PartitionSequencer:
    """Keeps a partition's batches in order through failures.

    Invariant: batches are on the wire in sequence order, `BATCHES_IN_FLIGHT_MAX` at most. After one failed, nothing of
    this partition is sent until all that is in flight is answered; then the failed ones go again, first and in order.
    The broker recognises those it has already (KIP-98), so that a retry never doubles a record.

    Nothing follows the first batch before that is acknowledged. It may be refused, because the leader of a new topic is
    not ready, or because the transaction before is still being ended: a broker that knows nothing of the producer would
    take the second batch for the first, and then never the first.
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
        """The sequence number of the first record that is yet to be added."""
        return self._next_sequence

    @property
    def waiting(self) -> bool:
        """Whether batches wait to be sent."""
        return bool(self._queue)

    @property
    def unfinished(self) -> int:
        """Batches not yet delivered."""
        return len(self._queue) + len(self._failed) + self._in_flight

    def sendable_to(self, node_id: int) -> bool:
        """Whether `take` may give a batch for this broker: never while another broker has some in flight."""
        if not self._queue or self._failed or self._in_flight >= (1 if self._is_first_due else BATCHES_IN_FLIGHT_MAX):
            return False
        return not self._in_flight or self._node_id == node_id

    def add(self, batch: PendingBatch) -> None:
        """Queues a batch, which takes the next sequence numbers."""
        batch.base_sequence = self._next_sequence
        batch.order = self._next_order
        self._next_order += 1
        self._next_sequence = increment_sequence(self._next_sequence, batch.record_count)
        self._queue.append(batch)

    def take(self, node_id: int) -> PendingBatch:
        """The next batch to send, for this broker."""
        assert self.sendable_to(node_id)
        self._in_flight += 1
        self._node_id = node_id
        return self._queue.popleft()

    def peek_bytes(self) -> int:
        """The size of the next batch."""
        return len(self._queue[0].data)

    def delivered(self) -> None:
        """A batch in flight was acknowledged."""
        self._is_first_due = False
        self._in_flight -= 1
        assert self._in_flight >= 0
        self._requeue()

    def failed(self, batch: PendingBatch) -> None:
        """A batch in flight must be sent again."""
        self._in_flight -= 1
        assert self._in_flight >= 0
        self._failed.append(batch)
        self._requeue()

    @property
    def draining(self) -> bool:
        """Whether a batch failed and others are still in flight, whose failure follows from the first."""
        return bool(self._failed)

    def _requeue(self) -> None:
        if self._failed and not self._in_flight:
            self._failed.sort(key=lambda batch: batch.order, reverse=True)
            self._queue.extendleft(self._failed)
            self._failed.clear()
