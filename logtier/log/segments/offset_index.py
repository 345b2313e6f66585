"""The sparse offset index of one segment."""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import islice
from operator import lt
from typing import Final

from headwater.logtier.runtime.disk import Buffer

ENTRY: Final = struct.Struct(">ii")

# array("i") must hold the int32 of the file; this is true on all supported platforms.
assert array("i").itemsize == 4


class OffsetIndex:
    """Maps offsets to positions in the segment's file, from which the batch that holds an offset is searched.

    An entry is (last offset of a batch relative to the segment's base offset, position of the batch), about one per
    `index.interval.bytes` of log, as in Kafka. Invariant: both strictly increase, and a position is always the start of
    a batch. File: `<base offset>.index`, pairs of big-endian int32. The index is in memory while the segment is active
    and in its file afterwards (`paged_index`); the segment decides when to write it. Only the segment uses it.

    >>> index = OffsetIndex()
    >>> index.append(9, 0)
    >>> index.append(29, 5000)
    >>> index.position_before(15), index.position_before(29), index.boundary_at_most(4999), index.boundary_at_most(9999)
    (0, 5000, 0, 5000)
    """

    __slots__ = ("_positions", "_relative_offsets")

    def __init__(self) -> None:
        self._relative_offsets = array("i")
        self._positions = array("i")

    def __len__(self) -> int:
        return len(self._positions)

    def append(self, relative_last_offset: int, position: int) -> None:
        """Add the entry of a batch that starts at `position`."""
        self._relative_offsets.append(relative_last_offset)
        self._positions.append(position)

    def position_before(self, relative_offset: int, may_wait: bool = True) -> int:  # noqa: ARG002 (see `paged_index`)
        """Return the last known batch start at or before the batch that holds the relative offset."""
        i = bisect_right(self._relative_offsets, relative_offset)
        return self._positions[i - 1] if i else 0

    def boundary_at_most(self, position: int, may_wait: bool = True) -> int:  # noqa: ARG002
        """Return the last known batch start at or before `position`."""
        i = bisect_right(self._positions, position)
        return self._positions[i - 1] if i else 0

    def offset_at_or_after(self, position: int) -> int | None:
        """Return the last relative offset of the first known batch that starts at or after `position`."""
        i = bisect_left(self._positions, position)
        return self._relative_offsets[i] if i < len(self._positions) else None

    @property
    def last_position(self) -> int:
        """Position of the last entry, 0 if there is none."""
        return self._positions[-1] if self._positions else 0

    def truncate_to_position(self, size: int) -> None:
        """Remove the entries of batches that start at or after `size`."""
        keep = bisect_right(self._positions, size - 1)
        del self._positions[keep:]
        del self._relative_offsets[keep:]

    def every(self, step: int) -> tuple["array[int]", "array[int]"]:
        """Return the offsets and positions of every `step`th entry, starting with the first."""
        return self._relative_offsets[::step], self._positions[::step]

    def copy(self) -> "OffsetIndex":
        """Return an independent copy."""
        copied = OffsetIndex()
        copied._relative_offsets = self._relative_offsets[:]
        copied._positions = self._positions[:]
        return copied

    def entries(self) -> list[tuple[int, int]]:
        """Return all entries."""
        return list(zip(self._relative_offsets, self._positions, strict=True))

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        interleaved = array("i", bytes(8 * len(self)))
        interleaved[::2] = self._relative_offsets
        interleaved[1::2] = self._positions
        if sys.byteorder == "little":
            interleaved.byteswap()
        return interleaved.tobytes()

    @classmethod
    def parse(cls, data: Buffer) -> "OffsetIndex":
        """Parse entries whose validity is known."""
        interleaved = array("i")
        interleaved.frombytes(data)
        if sys.byteorder == "little":
            interleaved.byteswap()
        index = cls()
        index._relative_offsets = interleaved[::2]
        index._positions = interleaved[1::2]
        return index

    @classmethod
    def from_bytes(cls, data: Buffer, log_size: int) -> "OffsetIndex | None":
        """Parse a file; None if it cannot be the index of a segment of `log_size` bytes (it is then rebuilt)."""
        if len(data) % ENTRY.size:
            return None
        index = cls.parse(data)
        for column in (index._relative_offsets, index._positions):
            if (column and column[0] < 0) or not all(map(lt, column, islice(column, 1, None))):
                return None
        if index.last_position and index.last_position >= log_size:
            return None
        return index
