"""The sparse time index of one segment."""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from headwater.logtier.runtime.disk import Buffer

ENTRY: Final = struct.Struct(">qi")


class TimeIndex:
    """Maps timestamps to offsets: where to begin to look for the first record that is not older than a time.

    An entry (timestamp, relative offset) says: no batch before the one with that last offset has a greater maximum
    timestamp, and that batch has exactly this one. Invariant: timestamps strictly increase, offsets too. On disk:
    `<base offset>.timeindex`, entries of big-endian int64 and int32. The last entry of a segment that is no longer
    written to is its maximum timestamp. In memory while batches come, in the file
    afterwards (`paged_index`); the segment decides when it is written.

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
        """Add an entry if its timestamp is greater than the last one's; tell whether it was added."""
        timestamps = self._timestamps
        if timestamp_ms < 0 or (timestamps and timestamp_ms <= timestamps[-1]):
            return False
        timestamps.append(timestamp_ms)
        self._relative_offsets.append(relative_offset)
        return True

    def offset_before(self, timestamp_ms: int, may_wait: bool = True) -> int | None:  # noqa: ARG002 (see `paged_index`)
        """Return the relative offset of the last entry that is not later than the time, None if there is none."""
        i = bisect_right(self._timestamps, timestamp_ms)
        return self._relative_offsets[i - 1] if i else None

    def first(self) -> tuple[int, int] | None:
        """Return the first entry: (timestamp, relative offset)."""
        return (self._timestamps[0], self._relative_offsets[0]) if self._timestamps else None

    def every(self, step: int) -> tuple["array[int]", "array[int]"]:
        """Return the timestamps and the offsets of the first entry and of each that is `step` entries later."""
        return self._timestamps[::step], self._relative_offsets[::step]

    def last(self) -> tuple[int, int] | None:
        """Return the last entry: (timestamp, relative offset)."""
        return (self._timestamps[-1], self._relative_offsets[-1]) if self._timestamps else None

    def truncate_to_offset(self, relative_offset: int) -> None:
        """Forget the entries of offsets at or after the given one."""
        keep = bisect_left(self._relative_offsets, relative_offset)
        del self._timestamps[keep:]
        del self._relative_offsets[keep:]

    def copy(self) -> "TimeIndex":
        """Return one of its own with the same entries."""
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
        # Three columns of four bytes: an entry is not aligned to its timestamp's eight.
        halves = array("i", timestamps.tobytes())
        interleaved = array("i", bytes(ENTRY.size * len(self)))
        interleaved[::3] = halves[::2]
        interleaved[1::3] = halves[1::2]
        interleaved[2::3] = offsets
        return interleaved.tobytes()

    @classmethod
    def from_bytes(cls, data: Buffer) -> "TimeIndex | None":
        """Parse a file; None when it cannot be a time index (it is then rebuilt)."""
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
