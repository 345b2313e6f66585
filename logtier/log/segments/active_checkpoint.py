"""Checkpoint of the active segment, up to an offset that is on the device: recovery continues from there."""

import struct
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from headwater.logtier.log.segments.offset_index import OffsetIndex
from headwater.logtier.log.segments.time_index import TimeIndex
from headwater.logtier.runtime.disk import Disk

FILE_NAME: Final = "active-segment-checkpoint"

_MAGIC: Final = b"HWAC"
# Version 1 was written before its batches were on the device, and is ignored.
_VERSION: Final = 2
_HEAD: Final = struct.Struct(">4sHI")
# Topic id, base offset, end offset, position, greatest timestamp and its offset, first timestamp, bytes since the last
# index entry; then the sizes of the five parts that follow.
_FIELDS: Final = struct.Struct(">16sqqqqqqqIIIII")
_BASE_OFFSET: Final = struct.Struct(">16sq")
_EPOCH: Final = struct.Struct(">iq")


class SegmentState(NamedTuple):
    """The state of a segment for the batches before `position`, which end at `end_offset`."""

    base_offset: int
    end_offset: int
    position: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    first_timestamp_ms: int
    bytes_since_index: int
    offset_index: OffsetIndex
    time_index: TimeIndex
    transaction_index: bytes


class ActiveCheckpoint(NamedTuple):
    """The state of a log's active segment, producers and leader epochs at an offset.

    The topic id distinguishes it from the checkpoint of a deleted topic of the same name, whose write may still be
    running. Without a checkpoint the whole active segment, up to `segment.bytes`, is checked after a crash. It is
    written when all records before the offset are on the device, and acts as a recovery point. File:
    `active-segment-checkpoint` beside the segments, with a checksum, replaced as a whole.
    """

    topic_id: UUID
    segment: SegmentState
    producers: bytes
    epochs: tuple[tuple[int, int], ...]

    def encode(self) -> bytes:
        """Return the content of the file."""
        segment = self.segment
        parts = (
            segment.offset_index.to_bytes(),
            segment.time_index.to_bytes(),
            segment.transaction_index,
            self.producers,
            b"".join(_EPOCH.pack(*epoch) for epoch in self.epochs),
        )
        fields = _FIELDS.pack(
            self.topic_id.bytes,
            segment.base_offset,
            segment.end_offset,
            segment.position,
            segment.max_timestamp_ms,
            segment.max_timestamp_offset,
            segment.first_timestamp_ms,
            segment.bytes_since_index,
            *map(len, parts),
        )
        body = b"".join((fields, *parts))
        return _HEAD.pack(_MAGIC, _VERSION, crc32c(body)) + body


def write_active_checkpoint(disk: Disk, directory: str, checkpoint: ActiveCheckpoint) -> None:
    """Replace the file; waits for the device."""
    disk.write_atomic(f"{directory}/{FILE_NAME}", checkpoint.encode())


def remove_active_checkpoint(disk: Disk, directory: str) -> None:
    """Remove an invalid checkpoint."""
    disk.remove(f"{directory}/{FILE_NAME}")


def read_active_checkpoint(disk: Disk, directory: str) -> ActiveCheckpoint | None:
    """Read the file; None if it is missing or damaged."""
    try:
        data = disk.read(f"{directory}/{FILE_NAME}")
    except FileNotFoundError:
        return None
    if len(data) < _HEAD.size + _FIELDS.size:
        return None
    magic, version, crc = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if (magic, version) != (_MAGIC, _VERSION) or crc32c(body) != crc:
        return None
    topic_id, base, end, position, max_ms, max_offset, first_ms, since_index, *sizes = _FIELDS.unpack_from(body)
    parts: list[bytes] = []
    start = _FIELDS.size
    for size in sizes:
        parts.append(bytes(body[start : start + size]))
        start += size
    offset_index = OffsetIndex.from_bytes(parts[0], position)
    time_index = TimeIndex.from_bytes(parts[1])
    if start != len(body) or offset_index is None or time_index is None or len(parts[4]) % _EPOCH.size:
        return None
    segment = SegmentState(
        base, end, position, max_ms, max_offset, first_ms, since_index, offset_index, time_index, parts[2]
    )
    pairs = tuple((epoch, offset) for epoch, offset in _EPOCH.iter_unpack(parts[4]))
    return ActiveCheckpoint(UUID(bytes=topic_id), segment, parts[3], pairs)


def read_checkpointed_base(disk: Disk, directory: str) -> int | None:
    """Return the base offset of the checkpointed segment without verifying the checksum; None without a file."""
    try:
        file = disk.open_read_only(f"{directory}/{FILE_NAME}")
    except FileNotFoundError:
        return None
    head = file.pread(_BASE_OFFSET.size, _HEAD.size)
    if len(head) < _BASE_OFFSET.size:
        return None
    _, base_offset = _BASE_OFFSET.unpack(head)
    return int(base_offset)
