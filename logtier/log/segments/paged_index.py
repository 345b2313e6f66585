"""The indexes of segments that are no longer written to: their entries stay in the files, a few lead to the others.

A TiB of small batches has 5 GiB of index entries, which would all come to be in memory. They are not mapped, either: a
page of a mapping that is not in memory stops the whole event loop, a file that somebody cuts ends the process (SIGBUS),
and a process has but 65,530 mappings. A read of one page does none of that.
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

# Entries of a page: 8 KiB of an offset index, which lead to the batches of 4 MiB at least. Opening the file and reading
# a page takes some 10 microseconds, which a reader of that much does not notice.
PAGE_ENTRIES: Final = 1024

# No file descriptor or memory now, or a file that is gone (its segment was deleted): the entries in memory will do.
_DO_WITHOUT: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOENT))

IndexT = TypeVar("IndexT", bound=OffsetIndex | TimeIndex)


class _PagedIndex(Generic[IndexT]):
    """An index file that changes no more, of which one page at a time is in memory: the last one that was read.

    Pages of a file that was found damaged are None from then on. May be used by several threads: what they write, a
    page with its number, they write at once.
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
        """Return a page; None if the file does not give it.

        Without `may_wait` BlockingIOError where it would wait for the device. (The file's name and inode are not waited
        for in practice: its segment's file, which is open, lies beside it.)
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
            _logger.warning("%s is damaged: until the next start look-ups in its segment take longer", self._path)
            return None
        self._last = (number, page)
        return page


class PagedOffsetIndex(_PagedIndex[OffsetIndex]):
    """The `OffsetIndex` of a segment that is no longer written to; see there for what look-ups return.

    Memory has the first entry and the checksum of each page. Invariant: where the file does not give a page, look-ups
    return an earlier batch (a later one for `offset_at_or_after`), from which the right one is found as well.
    """

    __slots__ = ("_checksums", "_first_offsets", "_first_positions", "last_position")

    def __init__(self, disk: Disk, path: str, index: OffsetIndex) -> None:
        """`index` is what the file at `path` has in it."""
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
        """Return the start of a batch at or before the one that holds the offset."""
        number = bisect_right(self._first_offsets, relative_offset) - 1
        if number < 0:
            return 0
        page = self._page(number, may_wait)
        return self._first_positions[number] if page is None else page.position_before(relative_offset)

    def boundary_at_most(self, position: int, may_wait: bool = True) -> int:
        """Return the last known start of a batch at or before `position`."""
        number = bisect_right(self._first_positions, position) - 1
        if number < 0:
            return 0
        page = self._page(number, may_wait)
        return self._first_positions[number] if page is None else page.boundary_at_most(position)

    def offset_at_or_after(self, position: int) -> int | None:
        """Return the (relative) offset of a known batch that starts at or after `position`; never waits."""
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
    """The `TimeIndex` of a segment that is no longer written to; memory and invariant as in `PagedOffsetIndex`."""

    __slots__ = ("_first_offsets", "_first_timestamps")

    def __init__(self, disk: Disk, path: str, index: TimeIndex) -> None:
        """`index` is what the file at `path` has in it."""
        super().__init__(disk, path, TIME_ENTRY.size, len(index))
        self._first_timestamps, self._first_offsets = index.every(PAGE_ENTRIES)

    def offset_before(self, timestamp_ms: int, may_wait: bool = True) -> int | None:
        """Return the relative offset of an entry that is not later than the time, None if there is none."""
        number = bisect_right(self._first_timestamps, timestamp_ms) - 1
        if number < 0:
            return None
        page = self._page(number, may_wait)
        return self._first_offsets[number] if page is None else page.offset_before(timestamp_ms)

    def _parse(self, number: int, data: Buffer) -> TimeIndex | None:
        page = TimeIndex.from_bytes(data)
        first = (self._first_timestamps[number], self._first_offsets[number])
        return page if page is not None and page.first() == first else None
