"""What a partition remembers of idempotent producers: a retry is recognised, a gap refused (KIP-98, KIP-360)."""

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.records.batch import (
    CONTROL,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    RecordBatchHeader,
    increment_sequence,
)

# A client has at most so many requests in flight with idempotence, hence no older batch can be retried.
BATCHES_PER_PRODUCER: Final = 5

_SEQUENCE_MAX: Final = 2**31 - 1
_NO_COORDINATOR_EPOCH: Final = -1
_NO_OFFSET: Final = -1

# Kafka's snapshot, version 1: version, CRC-32C of all that follows it, count, entries.
_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
# Producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, start of the transaction.
_SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
# Kafka keeps a producer's last batch only; its reader ignores what follows the entries (inside the checksum). There the
# older batches stand, so that after a restart a retry of any batch in flight is still recognised.
_WINDOW_MAGIC: Final = b"HWw1"
_WINDOW_ENTRY: Final = struct.Struct(">qiqiq")


class SnapshotError(ValueError):
    """A snapshot that is damaged or of an unknown version; an older one, or the log itself, takes its place."""


class BatchMetadata(NamedTuple):
    """One appended batch of a producer."""

    base_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_offset(self) -> int:
        """Offset that the batch's first record was given."""
        return self.last_offset - self.offset_delta


class ProducerState:
    """One producer in one partition: its epoch and its last batches, oldest first. Invariant: sequences contiguous."""

    __slots__ = ("batches", "epoch", "last_timestamp_ms")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_PER_PRODUCER)
        self.last_timestamp_ms = -1


class ProducerStates:
    """All idempotent producers of one partition.

    Invariant: per (producer id, epoch) the accepted sequences are contiguous, and a retry of any of the last five
    batches returns the offsets of the first attempt. The state equals a replay of the log's headers from the last
    snapshot (`<offset>.snapshot` in the partition's folder) on. Only `Log` and `recovery` use it.
    """

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, ProducerState] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, ProducerState]]:
        return iter(self._producers.items())

    def get(self, producer_id: int) -> ProducerState | None:
        """Return one producer's state."""
        return self._producers.get(producer_id)

    def check(
        self, producer_id: int, producer_epoch: int, base_sequence: int, last_offset_delta: int
    ) -> BatchMetadata | None:
        """Check a batch before it is appended: the original if it is a duplicate, None if it is next in sequence.

        Raises KafkaError: invalid_producer_epoch for a fenced producer, out_of_order_sequence_number for a gap. A
        producer that is not known (new here, or expired) may begin with any sequence number (KIP-360).
        """
        state = self._producers.get(producer_id)
        if state is None:
            return None
        epoch = state.epoch
        if producer_epoch == epoch:
            batches = state.batches
            if not batches:
                return None
            expected = (batches[-1].last_sequence + 1) & _SEQUENCE_MAX
            if base_sequence == expected:
                return None
            last_sequence = (base_sequence + last_offset_delta) & _SEQUENCE_MAX
            for batch in batches:
                if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                    return batch
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {producer_id} (epoch {epoch}) sent sequence {base_sequence}, expected is {expected}",
            )
        if producer_epoch < epoch:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {producer_id} has epoch {producer_epoch}, a newer one has epoch {epoch}",
            )
        if base_sequence != 0:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {producer_id} begins its epoch {producer_epoch} with sequence {base_sequence} instead of 0",
            )
        return None

    def update(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        last_offset_delta: int,
        last_offset: int,
        timestamp_ms: int,
    ) -> None:
        """Take in a batch that was appended (checked before, or found in the log)."""
        state = self._producers.get(producer_id)
        if state is None:
            state = self._producers[producer_id] = ProducerState(producer_epoch)
        elif state.epoch != producer_epoch:
            state.epoch = producer_epoch
            state.batches.clear()
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

    def replay(self, header: RecordBatchHeader) -> None:
        """Take in a batch found in the log; one without a producer changes nothing."""
        if header.producer_id == NO_PRODUCER_ID:
            return
        if header.attributes & CONTROL:
            # A transaction's end marker has no sequence; it may bring a newer epoch, which fences the older ones.
            state = self._producers.setdefault(header.producer_id, ProducerState(header.producer_epoch))
            if state.epoch != header.producer_epoch:
                state.epoch = header.producer_epoch
                state.batches.clear()
            state.last_timestamp_ms = header.max_timestamp_ms
            return
        if header.base_sequence != NO_SEQUENCE:
            self.update(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_offset_delta,
                header.last_offset,
                header.max_timestamp_ms,
            )

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers that were silent for too long (`producer.id.expiration.ms`); return how many."""
        expired = [
            producer_id
            for producer_id, state in self._producers.items()
            if now_ms - state.last_timestamp_ms >= expiration_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def snapshot(self) -> bytes:
        """Return the content of a snapshot file."""
        entries = bytearray(_COUNT.pack(len(self._producers)))
        windows = bytearray()
        for producer_id, state in self._producers.items():
            last = state.batches[-1] if state.batches else None
            entries += _SNAPSHOT_ENTRY.pack(
                producer_id,
                state.epoch,
                NO_SEQUENCE if last is None else last.last_sequence,
                _NO_OFFSET if last is None else last.last_offset,
                0 if last is None else last.offset_delta,
                state.last_timestamp_ms,
                _NO_COORDINATOR_EPOCH,
                _NO_OFFSET,
            )
            for batch in list(state.batches)[:-1]:
                windows += _WINDOW_ENTRY.pack(
                    producer_id, batch.last_sequence, batch.last_offset, batch.offset_delta, batch.timestamp_ms
                )
        if windows:
            entries += _WINDOW_MAGIC + windows
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(entries)) + bytes(entries)

    @classmethod
    def from_snapshot(cls, data: bytes) -> "ProducerStates":
        """Read a snapshot file, ours or Kafka's; raise SnapshotError when it is damaged."""
        if len(data) < _SNAPSHOT_HEAD.size + _COUNT.size:
            raise SnapshotError(f"a producer snapshot of {len(data)} bytes is too short")
        version, crc = _SNAPSHOT_HEAD.unpack_from(data)
        body = memoryview(data)[_SNAPSHOT_HEAD.size :]
        if version != _SNAPSHOT_VERSION:
            raise SnapshotError(f"a producer snapshot has version {version}, only {_SNAPSHOT_VERSION} is known")
        if crc32c(body) != crc:
            raise SnapshotError("a producer snapshot does not match its checksum")
        (count,) = _COUNT.unpack_from(body)
        entries_end = _COUNT.size + count * _SNAPSHOT_ENTRY.size
        if count < 0 or entries_end > len(body):
            raise SnapshotError(f"a producer snapshot claims {count} entries in {len(body)} bytes")
        states = cls()
        states._read_entries(
            _SNAPSHOT_ENTRY.iter_unpack(body[_COUNT.size : entries_end]), _older_batches(body[entries_end:])
        )
        return states

    def _read_entries(self, entries: Iterable[tuple[int, ...]], older_batches: dict[int, list[BatchMetadata]]) -> None:
        for producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, _, _ in entries:
            state = self._producers[producer_id] = ProducerState(epoch)
            state.last_timestamp_ms = timestamp
            if last_sequence != NO_SEQUENCE:
                state.batches.extend(older_batches.get(producer_id, ()))
                state.batches.append(_batch(last_sequence, last_offset, offset_delta, timestamp))


def _older_batches(data: memoryview) -> dict[int, list[BatchMetadata]]:
    """Read what follows Kafka's entries; anything else than our own extension is left alone."""
    found: dict[int, list[BatchMetadata]] = {}
    rest = data[len(_WINDOW_MAGIC) :]
    if bytes(data[: len(_WINDOW_MAGIC)]) == _WINDOW_MAGIC and len(rest) % _WINDOW_ENTRY.size == 0:
        for producer_id, last_sequence, last_offset, offset_delta, timestamp in _WINDOW_ENTRY.iter_unpack(rest):
            found.setdefault(producer_id, []).append(_batch(last_sequence, last_offset, offset_delta, timestamp))
    return found


def _batch(last_sequence: int, last_offset: int, offset_delta: int, timestamp_ms: int) -> BatchMetadata:
    base_sequence = increment_sequence(last_sequence, -offset_delta)
    return BatchMetadata(base_sequence, last_sequence, last_offset, offset_delta, timestamp_ms)


assert NO_PRODUCER_EPOCH == -1  # no real epoch is smaller than "none"
