"""Iterates over the whole batches of a segment and checks each."""

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from headwater.logtier.records.batch import (
    ATTRIBUTES,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
    RecordBatchHeader,
)
from headwater.logtier.runtime.disk import File

# Bytes per read: one system call per megabyte, with little memory.
_CHUNK_BYTES: Final = 1024 * 1024


class ScannedSegment(Protocol):
    """The attributes of a segment that a scan needs; the segment may grow meanwhile."""

    base_offset: int
    size: int

    @property
    def file(self) -> File:
        """The file of batches."""


class BatchLocation(NamedTuple):
    """Position and header of a batch in a segment."""

    position: int
    size_bytes: int
    header: RecordBatchHeader


def checked_batches(segment: ScannedSegment, position: int) -> Iterator[tuple[BatchLocation, memoryview]]:
    """Yield the whole batches from `position` on, up to the first that is torn, damaged or out of order."""
    chunk = b""
    chunk_start = position
    next_offset = segment.base_offset
    while position + HEADER_BYTES <= segment.size:
        at = position - chunk_start
        available = len(chunk) - at
        batch_size = int.from_bytes(chunk[at + 8 : at + 12], "big") + LOG_OVERHEAD if available >= LOG_OVERHEAD else 0
        if available < HEADER_BYTES or batch_size > available:
            if position + batch_size > segment.size:
                return
            chunk = segment.file.pread(min(max(batch_size, _CHUNK_BYTES), segment.size - position), position)
            chunk_start, at = position, 0
            batch_size = int.from_bytes(chunk[8:12], "big") + LOG_OVERHEAD
            if len(chunk) < batch_size <= segment.size - position:
                chunk = segment.file.pread(batch_size, position)
        if batch_size < HEADER_BYTES or at + batch_size > len(chunk):
            return
        batch = memoryview(chunk)[at : at + batch_size]
        header = RecordBatchHeader(*HEADER.unpack_from(batch))
        if (
            header.magic != MAGIC_V2
            or header.base_offset < next_offset
            or header.last_offset_delta < 0
            or crc32c(batch[ATTRIBUTES:]) != header.crc
        ):
            return
        yield BatchLocation(position, batch_size, header), batch
        next_offset = header.last_offset + 1
        position += batch_size
