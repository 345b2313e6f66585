"""The sparse time index of one segment."""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from headwater.logtier.runtime.disk import Buffer

ENTRY: Final = struct.Struct(">qi")


class TimeIndex:
    """Maps timestamps to offsets, from which the first record at or after a timestamp is searched.

    For an entry (timestamp, relative offset), the batch with that last offset has this maximum timestamp, and no
    earlier batch has a greater one. Invariant: timestamps and offsets strictly increase. File: `<base
    offset>.timeindex`, entries of big-endian int64 and int32. The last entry of an inactive segment is its maximum
    timestamp. The index is in memory while the segment is active and in its file afterwards (`paged_index`); the
    segment decides when to write it.

    >>> index = TimeIndex()
    >>> index.maybe_append(1000, 4), index.maybe_append(1000, 9), index.maybe_append(3000, 14)
    (True, False, True)
    >>> index.offset_before(2999), index.offset_before(3000), index.offset_before(10)
    (4, 14, None)
    """

    __slots__ = ("_relative_offsets", "_timestamps")

    def __init__(self) -> None:
        self._timestamps = array("q")
        self._relative_offsets = array("i")

    def __len__(self) -> int:
        return len(self._timestamps)

    def maybe_append(self, timestamp_ms: int, relative_offset: int) -> bool:
        """Add an entry if its timestamp is greater than that of the last entry; return whether it was added."""
        timestamps = self._timestamps
        if timestamp_ms < 0 or (timestamps and timestamp_ms <= timestamps[-1]):
            return False
        timestamps.append(timestamp_ms)
        self._relative_offsets.append(relative_offset)
        return True

    def offset_before(self, timestamp_ms: int, may_wait: bool = True) -> int | None:  # noqa: ARG002 (see `paged_index`)
        """Return the relative offset of the last entry at or before the timestamp, None if there is none."""
        i = bisect_right(self._timestamps, timestamp_ms)
        return self._relative_offsets[i - 1] if i else None

    def first(self) -> tuple[int, int] | None:
        """Return the first entry: (timestamp, relative offset)."""
        return (self._timestamps[0], self._relative_offsets[0]) if self._timestamps else None

    def every(self, step: int) -> tuple["array[int]", "array[int]"]:
        """Return the timestamps and offsets of every `step`th entry, starting with the first."""
        return self._timestamps[::step], self._relative_offsets[::step]

    def last(self) -> tuple[int, int] | None:
        """Return the last entry: (timestamp, relative offset)."""
        return (self._timestamps[-1], self._relative_offsets[-1]) if self._timestamps else None

    def truncate_to_offset(self, relative_offset: int) -> None:
        """Remove the entries of offsets at or after the given one."""
        keep = bisect_left(self._relative_offsets, relative_offset)
        del self._timestamps[keep:]
        del self._relative_offsets[keep:]

    def copy(self) -> "TimeIndex":
        """Return an independent copy."""
        copied = TimeIndex()
        copied._timestamps = self._timestamps[:]
        copied._relative_offsets = self._relative_offsets[:]
        return copied

    def entries(self) -> list[tuple[int, int]]:
        """Return all entries."""
        return list(zip(self._timestamps, self._relative_offsets, strict=True))

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        timestamps, offsets = self._timestamps[:], self._relative_offsets[:]
        if sys.byteorder == "little":
            timestamps.byteswap()
            offsets.byteswap()
        # Three columns of four bytes: entries are not aligned to the eight bytes of a timestamp.
        halves = array("i", timestamps.tobytes())
        interleaved = array("i", bytes(ENTRY.size * len(self)))
        interleaved[::3] = halves[::2]
        interleaved[1::3] = halves[1::2]
        interleaved[2::3] = offsets
        return interleaved.tobytes()

    @classmethod
    def from_bytes(cls, data: Buffer) -> "TimeIndex | None":
        """Parse a file; None if it cannot be a time index (it is then rebuilt)."""
        if len(data) % ENTRY.size:
            return None
        index = cls()
        for timestamp, relative_offset in ENTRY.iter_unpack(data):
            last = index.last()
            if relative_offset < 0 or (last is not None and relative_offset < last[1]):
                return None
            if not index.maybe_append(timestamp, relative_offset):
                return None
        return index
