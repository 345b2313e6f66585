"""Indexes of inactive segments: the entries stay in the files, and memory holds one entry per page.

A TiB of small batches has 5 GiB of index entries, which would accumulate in memory. The files are not memory-mapped
either: a page fault blocks the whole event loop, a truncated file ends the process (SIGBUS), and a process has at most
65,530 mappings. Reading one page has none of these faults.
"""

import errno
import logging
from array import array
from bisect import bisect_left, bisect_right
from typing import Final, Generic, TypeVar

from crc32c import crc32c

from headwater.logtier.log.segments.offset_index import ENTRY as OFFSET_ENTRY
from headwater.logtier.log.segments.offset_index import OffsetIndex
from headwater.logtier.log.segments.time_index import ENTRY as TIME_ENTRY
from headwater.logtier.log.segments.time_index import TimeIndex
from headwater.logtier.runtime.disk import Buffer, Disk

_logger = logging.getLogger(__name__)

# Entries of a page: 8 KiB of an offset index, which cover at least 4 MiB of batches. Opening the file and reading a
# page takes about 10 microseconds, which is negligible for a reader of that much data.
PAGE_ENTRIES: Final = 1024

# No file descriptor or memory, or a file of a deleted segment: the entries in memory are used instead.
_DO_WITHOUT: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOENT))

IndexT = TypeVar("IndexT", bound=OffsetIndex | TimeIndex)


class _PagedIndex(Generic[IndexT]):
    """An index file that no longer changes, with one page in memory: the page read last.

    A damaged file yields None for all further pages. Several threads may use it: the page and its number are replaced
    in one assignment.
    """

    __slots__ = ("_disk", "_entry_bytes", "_is_damaged", "_last", "_length", "_path")

    def __init__(self, disk: Disk, path: str, entry_bytes: int, length: int) -> None:
        self._disk = disk
        self._path = path
        self._entry_bytes = entry_bytes
        self._length = length
        self._last: tuple[int, IndexT] | None = None
        self._is_damaged = False

    def _parse(self, number: int, data: Buffer) -> IndexT | None:
        """Parse a page; None if it is damaged."""
        raise NotImplementedError

    def _page(self, number: int, may_wait: bool) -> IndexT | None:
        """Return a page; None if it cannot be read from the file.

        Without `may_wait`, BlockingIOError is raised if the page is not in memory. (The file's name and inode are
        practically always cached: the open file of its segment is in the same folder.)
        """
        last = self._last
        if last is not None and last[0] == number:
            return last[1]
        if self._is_damaged:
            return None
        start = number * PAGE_ENTRIES
        size = min(PAGE_ENTRIES, self._length - start) * self._entry_bytes
        try:
            file = self._disk.open_read_only(self._path)
            data = (file.pread if may_wait else file.pread_in_memory)(size, start * self._entry_bytes)
        except OSError as error:
            if error.errno not in _DO_WITHOUT:
                raise
            return None
        page = self._parse(number, data) if len(data) == size else None
        if page is None:
            self._is_damaged = True
            _logger.warning("%s is damaged; look-ups in its segment are slower until the next start", self._path)
            return None
        self._last = (number, page)
        return page


class PagedOffsetIndex(_PagedIndex[OffsetIndex]):
    """The `OffsetIndex` of an inactive segment, with the same look-ups.

    Memory holds the first entry and the checksum of each page. Invariant: if a page cannot be read, look-ups return an
    earlier batch (`offset_at_or_after` a later one), from which the search reaches the same result.
    """

    __slots__ = ("_checksums", "_first_offsets", "_first_positions", "last_position")

    def __init__(self, disk: Disk, path: str, index: OffsetIndex) -> None:
        """Page the file at `path`, whose content equals `index`."""
        super().__init__(disk, path, OFFSET_ENTRY.size, len(index))
        self._first_offsets, self._first_positions = index.every(PAGE_ENTRIES)
        data = memoryview(index.to_bytes())
        page_bytes = PAGE_ENTRIES * OFFSET_ENTRY.size
        self._checksums = array(
            "I", [crc32c(data[start : start + page_bytes]) for start in range(0, len(data), page_bytes)]
        )
        #: Position of the last entry, 0 if there is none.
        self.last_position = index.last_position

    def position_before(self, relative_offset: int, may_wait: bool = True) -> int:
        """Return a batch start at or before the batch that holds the relative offset."""
        number = bisect_right(self._first_offsets, relative_offset) - 1
        if number < 0:
            return 0
        page = self._page(number, may_wait)
        return self._first_positions[number] if page is None else page.position_before(relative_offset)

    def boundary_at_most(self, position: int, may_wait: bool = True) -> int:
        """Return the last known batch start at or before `position`."""
        number = bisect_right(self._first_positions, position) - 1
        if number < 0:
            return 0
        page = self._page(number, may_wait)
        return self._first_positions[number] if page is None else page.boundary_at_most(position)

    def offset_at_or_after(self, position: int) -> int | None:
        """Return the last relative offset of a known batch that starts at or after `position`; never waits."""
        following = bisect_left(self._first_positions, position)
        if following:
            try:
                page = self._page(following - 1, may_wait=False)
            except BlockingIOError:
                page = None
            found = None if page is None else page.offset_at_or_after(position)
            if found is not None:
                return found
        return self._first_offsets[following] if following < len(self._first_offsets) else None

    def _parse(self, number: int, data: Buffer) -> OffsetIndex | None:
        return OffsetIndex.parse(data) if crc32c(data) == self._checksums[number] else None


class PagedTimeIndex(_PagedIndex[TimeIndex]):
    """The `TimeIndex` of an inactive segment; memory and invariant as in `PagedOffsetIndex`."""

    __slots__ = ("_first_offsets", "_first_timestamps")

    def __init__(self, disk: Disk, path: str, index: TimeIndex) -> None:
        """Page the file at `path`, whose content equals `index`."""
        super().__init__(disk, path, TIME_ENTRY.size, len(index))
        self._first_timestamps, self._first_offsets = index.every(PAGE_ENTRIES)

    def offset_before(self, timestamp_ms: int, may_wait: bool = True) -> int | None:
        """Return the relative offset of an entry at or before the timestamp, None if there is none."""
        number = bisect_right(self._first_timestamps, timestamp_ms) - 1
        if number < 0:
            return None
        page = self._page(number, may_wait)
        return self._first_offsets[number] if page is None else page.offset_before(timestamp_ms)

    def _parse(self, number: int, data: Buffer) -> TimeIndex | None:
        page = TimeIndex.from_bytes(data)
        first = (self._first_timestamps[number], self._first_offsets[number])
        return page if page is not None and page.first() == first else None
