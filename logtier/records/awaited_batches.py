"""The batches that were refused on a connection and come again, before which no later ones are taken; pure.

A producer has several batches of a partition in flight. When the first one is refused and the broker could take the
next, since it leads now or has room again, the next one must wait as well:

- A log that knows the producer finds it out of order. Told so, librdkafka begins a new epoch and sends in it all that
  it has no answer for, in every partition: what is in a log already would be there twice.
- A log that has records but does not know the producer takes any sequence number (KIP-360). librdkafka counts all
  batches before an acknowledged one as acknowledged: the refused one would be lost.

A gap that has another reason, such as records that an unclean election lost, is told after a few attempts.
"""

from typing import Final, NamedTuple

from headwater.logtier.records.batch import HEADER_BYTES, PRODUCER_FIELDS, PRODUCER_ID, Buffer

#: Batches that are held back for one. An idempotent producer has five in flight (KAFKA-5494), librdkafka one more.
HELD_BACK_MAX: Final = 10
#: Partitions of a connection; beyond them, what was refused first is forgotten. About 300 bytes each.
PARTITIONS_MAX: Final = 1_000

_SEQUENCES: Final = 1 << 31


class BatchSequence(NamedTuple):
    """The place of a batch among those of its producer."""

    producer_id: int
    epoch: int
    base_sequence: int

    def is_behind(self, other: "BatchSequence") -> bool:
        """Whether it comes after another batch of the same producer and epoch; sequence numbers wrap."""
        if self.producer_id != other.producer_id or self.epoch != other.epoch:
            return False
        return 0 < (self.base_sequence - other.base_sequence) % _SEQUENCES < _SEQUENCES // 2


def sequence_of(records: Buffer | None) -> BatchSequence | None:
    """The place of the first batch; None without a whole header, or of a producer that is not idempotent."""
    if records is None or len(records) < HEADER_BYTES:
        return None
    producer_id, epoch, base_sequence = PRODUCER_FIELDS.unpack_from(records, PRODUCER_ID)
    return None if producer_id < 0 or base_sequence < 0 else BatchSequence(producer_id, epoch, base_sequence)


class AwaitedBatches:
    """The first refused batch of each partition, and how many behind it may still be held back."""

    __slots__ = ("_awaited",)

    def __init__(self) -> None:
        self._awaited: dict[tuple[str, int], tuple[BatchSequence, int]] = {}

    def __len__(self) -> int:
        return len(self._awaited)

    def refused(self, topic_partition: tuple[str, int], batch: BatchSequence) -> None:
        """Await a batch that was refused, unless it comes behind another one that is awaited."""
        awaited = self._awaited.get(topic_partition)
        if awaited is not None and batch.is_behind(awaited[0]):
            return
        if awaited is None and len(self._awaited) >= PARTITIONS_MAX:
            del self._awaited[next(iter(self._awaited))]
        self._awaited[topic_partition] = batch, HELD_BACK_MAX

    def appended(self, topic_partition: tuple[str, int], batch: BatchSequence | None) -> None:
        """Await nothing of a producer in a partition any longer: its log has taken a batch."""
        awaited = self._awaited.get(topic_partition)
        if awaited is not None and batch is not None and batch.producer_id == awaited[0].producer_id:
            del self._awaited[topic_partition]

    def hold_back(self, topic_partition: tuple[str, int], batch: BatchSequence | None) -> bool:
        """Whether to refuse a batch that its log would take or find out of order; counts it, if so."""
        awaited = self._awaited.get(topic_partition)
        if awaited is None or batch is None or not batch.is_behind(awaited[0]):
            return False
        first, left = awaited
        if left == 0:
            del self._awaited[topic_partition]
            return False
        self._awaited[topic_partition] = first, left - 1
        return True
