"""The content of a `.snapshot` file: the producers of a partition in Kafka's format. Pure."""

import struct
from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

from headwater.logtier.log.producers.producer_state import NO_OFFSET, BatchMetadata, ProducerState, ProducerStates
from headwater.logtier.records.batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, increment_sequence

# Kafka's snapshot, version 1: version, CRC-32C of all that follows it, count, entries.
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
# Producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, start of the transaction.
_ENTRY: Final = struct.Struct(">qhiqiqiq")
# Kafka stores only a producer's last batch; its reader ignores bytes after the entries (inside the checksum). The older
# batches are stored there, so that after a restart a retry of any batch in flight is still recognised.
_WINDOW_MAGIC: Final = b"HWw1"
_WINDOW_ENTRY: Final = struct.Struct(">qiqiq")

assert NO_PRODUCER_EPOCH == -1  # no real epoch is smaller than "none"


class SnapshotError(ValueError):
    """A snapshot is damaged or has an unknown version; an older snapshot or the log itself is used instead."""


def encode_snapshot(producers: ProducerStates) -> bytes:
    """Return the content of the file."""
    entries = bytearray(_COUNT.pack(len(producers)))
    windows = bytearray()
    for producer_id, state in producers:
        last = state.batches[-1] if state.batches else None
        entries += _ENTRY.pack(
            producer_id,
            state.epoch,
            NO_SEQUENCE if last is None else last.last_sequence,
            NO_OFFSET if last is None else last.last_offset,
            0 if last is None else last.offset_delta,
            state.last_timestamp_ms,
            state.coordinator_epoch,
            state.transaction_first_offset,
        )
        for batch in list(state.batches)[:-1]:
            windows += _WINDOW_ENTRY.pack(
                producer_id, batch.last_sequence, batch.last_offset, batch.offset_delta, batch.timestamp_ms
            )
    if windows:
        entries += _WINDOW_MAGIC + windows
    return _HEAD.pack(_VERSION, crc32c(entries)) + bytes(entries)


def decode_snapshot(data: bytes) -> ProducerStates:
    """Parse a snapshot file of this broker or of Kafka.

    Raises:
        SnapshotError: The file is damaged or has another version.
    """
    if len(data) < _HEAD.size + _COUNT.size:
        raise SnapshotError(f"a producer snapshot of {len(data)} bytes is too short")
    version, crc = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if version != _VERSION:
        raise SnapshotError(f"a producer snapshot has version {version}, supported is {_VERSION}")
    if crc32c(body) != crc:
        raise SnapshotError("a producer snapshot does not match its checksum")
    (count,) = _COUNT.unpack_from(body)
    entries_end = _COUNT.size + count * _ENTRY.size
    if count < 0 or entries_end > len(body):
        raise SnapshotError(f"a producer snapshot claims {count} entries in {len(body)} bytes")
    producers = ProducerStates()
    producers.restore(_states(_ENTRY.iter_unpack(body[_COUNT.size : entries_end]), _older_batches(body[entries_end:])))
    return producers


def _states(
    entries: Iterable[tuple[int, ...]], older_batches: dict[int, list[BatchMetadata]]
) -> Iterable[tuple[int, ProducerState]]:
    for producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first in entries:
        state = ProducerState(epoch)
        state.last_timestamp_ms = timestamp
        state.coordinator_epoch = coordinator_epoch
        state.transaction_first_offset = first
        if last_sequence != NO_SEQUENCE:
            state.batches.extend(older_batches.get(producer_id, ()))
            state.batches.append(_batch(last_sequence, last_offset, offset_delta, timestamp))
        yield producer_id, state


def _older_batches(data: memoryview) -> dict[int, list[BatchMetadata]]:
    """Parse the extension after Kafka's entries; other content is ignored."""
    found: dict[int, list[BatchMetadata]] = {}
    rest = data[len(_WINDOW_MAGIC) :]
    if bytes(data[: len(_WINDOW_MAGIC)]) == _WINDOW_MAGIC and len(rest) % _WINDOW_ENTRY.size == 0:
        for producer_id, last_sequence, last_offset, offset_delta, timestamp in _WINDOW_ENTRY.iter_unpack(rest):
            found.setdefault(producer_id, []).append(_batch(last_sequence, last_offset, offset_delta, timestamp))
    return found


def _batch(last_sequence: int, last_offset: int, offset_delta: int, timestamp_ms: int) -> BatchMetadata:
    base_sequence = increment_sequence(last_sequence, -offset_delta)
    return BatchMetadata(base_sequence, last_sequence, last_offset, offset_delta, timestamp_ms)
