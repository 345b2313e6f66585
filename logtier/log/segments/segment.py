"""One segment of a log: a file of record batches with its two sparse indexes."""

import copy
import errno
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from headwater.logtier.log.segments.active_checkpoint import SegmentState
from headwater.logtier.log.segments.batch_scan import BatchLocation, checked_batches
from headwater.logtier.log.segments.index_files import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Indexes,
    PagedIndexes,
    open_index_files,
    paged_indexes,
    read_index_file,
    read_indexes,
    write_index_file,
    write_indexes,
)
from headwater.logtier.log.segments.offset_index import OffsetIndex
from headwater.logtier.log.segments.paged_index import PagedOffsetIndex, PagedTimeIndex
from headwater.logtier.log.segments.time_index import TimeIndex
from headwater.logtier.log.segments.transaction_index import TransactionIndex
from headwater.logtier.records.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    CorruptRecordsError,
    EndTransactionMarker,
    RecordBatchHeader,
    decode_end_transaction_marker,
)
from headwater.logtier.runtime.disk import Buffer, Disk, File

LOG_SUFFIX: Final = ".log"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

# Offsets in the indexes and positions in the file are int32.
RELATIVE_OFFSET_MAX: Final = 2**31 - 1

# Bytes per read of a scan of headers: a few system calls per megabyte.
_HEADER_CHUNK_BYTES: Final = 64 * 1024

# Base offset, length and last offset delta of a batch.
_SPAN: Final = struct.Struct(">qi11xi")

# Number of remembered read ends: consumers at the log end continue with the next batch.
_READ_ENDS_MAX: Final = 64


def segment_name(base_offset: int) -> str:
    """Name of a segment's files, without the suffix.

    >>> segment_name(368769)
    '00000000000000368769'
    """
    return f"{base_offset:020d}"


class LogSegment:
    """A file of batches in offset order, starting at `base_offset`, with an offset index and a time index.

    Invariant: the file holds whole, checked batches only (`recover` cuts off a torn end after a crash), and its first
    `size` bytes never change. Files: `<base offset, 20 digits>.log`, `.index`, `.timeindex`, and `.txnindex` with
    aborted transactions. The indexes are in memory while the segment is active; they are written when the segment rolls
    or the log closes, and rebuilt from the batches if their files are missing or damaged. A sealed segment reads its
    index files (`paged_index`). Only `Log` and `recovery` use it.
    """

    __slots__ = (
        "_disk",
        "_file",
        "_indexes",
        "_is_saved",
        "_is_sealed",
        "_is_twin",
        "_max_timestamp",
        "_paged",
        "_prefix",
        "_read_ends",
        "_suffix",
        "_transaction_index",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "first_timestamp_ms",
        "index_interval_bytes",
        "index_room",
        "is_rebuilt",
        "modified_ms",
        "size",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        size: int,
        modified_ms: int,
        index_interval_bytes: int,
        suffix: str = "",
    ) -> None:
        """Create a segment; `suffix` (`.cleaned`, `.swap`) follows the names of files not yet part of the log."""
        self._disk = disk
        self._prefix = f"{directory}/{segment_name(base_offset)}"
        self._suffix = suffix
        self._file: File | None = None
        # Loaded on first use, so that a broker with many segments starts quickly.
        self._indexes: Indexes | None = None
        # Replaces `_indexes` once the segment is sealed and the index files are complete.
        self._paged: PagedIndexes | None = None
        self._is_sealed = False
        # Whether the index files equal `_indexes`.
        self._is_saved = False
        self._transaction_index: TransactionIndex | None = None
        self._max_timestamp: tuple[int, int] = (NO_TIMESTAMP, base_offset)
        self._read_ends: dict[int, int] = {}
        self.base_offset = base_offset
        self.size = size
        self.modified_ms = modified_ms
        self.created_ms = modified_ms
        self.first_timestamp_ms: int | None = None
        self.index_interval_bytes = index_interval_bytes
        self.bytes_since_index = 0
        #: Lower bound of the free entries of both indexes; 0 before the first count (`is_index_full`).
        self.index_room = 0
        self._is_twin = False
        #: Whether the index files were missing or damaged.
        self.is_rebuilt = False

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        now_ms: int,
        index_interval_bytes: int,
        suffix: str = "",
        is_folder_new: bool = False,
    ) -> "LogSegment":
        """Create the segment with an empty file."""
        segment = cls(
            disk,
            directory,
            base_offset,
            size=0,
            modified_ms=now_ms,
            index_interval_bytes=index_interval_bytes,
            suffix=suffix,
        )
        # Existing index files belong to a removed segment.
        for name in () if is_folder_new else (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
            disk.remove(segment._prefix + name + suffix)
        segment._file = disk.open(segment.log_path, create=True)
        try:
            segment._file.truncate(0)
        except OSError:
            # A left-over file would count as the end of the log after the next clean stop.
            disk.remove(segment.log_path)
            raise
        segment._indexes = (OffsetIndex(), TimeIndex())
        segment._transaction_index = TransactionIndex()
        return segment

    def twin(self, *, is_growing: bool) -> "LogSegment":
        """Return a second object over the same files for reading on another thread; no mutable state is shared."""
        twin = copy.copy(self)
        twin._is_twin = True
        twin._read_ends = {}
        if is_growing and self._indexes is not None:
            twin._indexes = (self._indexes[0].copy(), self._indexes[1].copy())
        if is_growing and self._transaction_index is not None:
            twin._transaction_index = TransactionIndex(self._transaction_index.to_bytes())
        return twin

    def adopt(self, twin: "LogSegment") -> None:
        """Take over the indexes that a twin loaded, unless they are loaded here."""
        if self._indexes is None and self._paged is None and not twin.is_rebuilt:
            self._indexes, self._paged = twin._indexes, twin._paged
            self._max_timestamp = twin._max_timestamp
            self.first_timestamp_ms = twin.first_timestamp_ms
            self.bytes_since_index = twin.bytes_since_index
        if self._transaction_index is None:
            self._transaction_index = twin._transaction_index

    def __repr__(self) -> str:
        return f"LogSegment({self._prefix}, {self.size} bytes)"

    @property
    def log_path(self) -> str:
        """Path of the file of batches."""
        return self._path(LOG_SUFFIX)

    def _path(self, name: str) -> str:
        return self._prefix + name + self._suffix

    @property
    def file(self) -> File:
        """The file of batches, opened on first use."""
        if self._file is None:
            self._file = self._disk.open(self.log_path)
        return self._file

    @property
    def offset_index(self) -> OffsetIndex | PagedOffsetIndex:
        """The offset index, loaded on first use."""
        return (self._indexes or self._paged or self._load_indexes())[0]

    @property
    def time_index(self) -> TimeIndex | PagedTimeIndex:
        """The time index, loaded on first use."""
        return (self._indexes or self._paged or self._load_indexes())[1]

    @property
    def transaction_index(self) -> TransactionIndex:
        """The index of aborted transactions, loaded on first use; CorruptRecordsError if it is damaged."""
        if self._transaction_index is None:
            data = read_index_file(self._disk, self._path(TRANSACTION_INDEX_SUFFIX))
            index = TransactionIndex.from_bytes(data or b"", self.base_offset)
            if index is None:
                raise CorruptRecordsError(f"{self._prefix}{TRANSACTION_INDEX_SUFFIX} is damaged")
            self._transaction_index = index
        return self._transaction_index

    @property
    def has_transaction_index(self) -> bool:
        """Whether the index of aborted transactions is in memory."""
        return self._transaction_index is not None

    def begin_transaction_index(self) -> TransactionIndex:
        """Replace the index of aborted transactions by an empty one."""
        self._transaction_index = TransactionIndex(is_unsaved=True)
        return self._transaction_index

    def is_index_full(self, offset_entries_max: int, time_entries_max: int) -> bool:
        """Whether one of the indexes has no room for another entry; updates `index_room`."""
        offset_index, time_index = self._indexes or self._load_whole_indexes()
        self.index_room = min(offset_entries_max - len(offset_index), time_entries_max - len(time_index))
        return self.index_room <= 0

    @property
    def max_timestamp_ms(self) -> int:
        """Greatest timestamp of the records, NO_TIMESTAMP without timestamps."""
        if not (self._indexes or self._paged):
            self._load_indexes()
        return self._max_timestamp[0]

    def newest_ms(self, may_wait: bool) -> int:
        """Return `max_timestamp_ms`; without `may_wait`, BlockingIOError if the indexes are not in memory."""
        if not (may_wait or self._indexes or self._paged):
            raise BlockingIOError(errno.EAGAIN, f"{self.log_path}: the indexes are not in memory")
        return self.max_timestamp_ms

    # -- writing

    def append(self, buffers: Sequence[Buffer], size: int, last_offset: int, max_timestamp_ms: int) -> None:
        """Write one batch of `size` bytes, given in parts; an OSError leaves the segment unchanged."""
        position = (self._file or self.file).append(buffers)
        self.size = position + size
        self._note_batch(last_offset, position, size, max_timestamp_ms)

    def append_all(self, data: Buffer, batches: Iterable[tuple[int, int, int]]) -> None:
        """Write many batches at once: `batches` has (last offset, size, greatest timestamp), in the order of `data`."""
        position = self.file.append([data])
        for last_offset, size, max_timestamp_ms in batches:
            self._note_batch(last_offset, position, size, max_timestamp_ms)
            position += size
        self.size = position

    def _note_batch(self, last_offset: int, position: int, size: int, max_timestamp_ms: int) -> None:
        """Add a written batch to the indexes; used for appends and for rebuilding."""
        if self.first_timestamp_ms is None:
            self.first_timestamp_ms = max_timestamp_ms
        if max_timestamp_ms > self._max_timestamp[0]:
            self._max_timestamp = (max_timestamp_ms, last_offset)
        if self.bytes_since_index > self.index_interval_bytes:
            offset_index, time_index = self._indexes or self._load_whole_indexes()
            offset_index.append(last_offset - self.base_offset, position)
            timestamp, offset = self._max_timestamp
            time_index.maybe_append(timestamp, offset - self.base_offset)
            self.bytes_since_index = size
            self.index_room -= 1
        else:
            self.bytes_since_index += size

    def write_indexes(self) -> None:
        """Write the index files to the page cache.

        On a full disk the offset and time indexes are left out and rebuilt from the batches when needed; for the index
        of aborted transactions the error is raised.
        """
        transactions = self._transaction_index
        if transactions is not None and transactions.is_unsaved:
            if transactions:
                write_index_file(self._disk, self._path(TRANSACTION_INDEX_SUFFIX), transactions.to_bytes())
            else:
                self._disk.remove(self._path(TRANSACTION_INDEX_SUFFIX))
            transactions.is_unsaved = False
        if self._indexes is None:
            return  # never loaded, or sealed, hence not changed
        self._is_saved = False
        timestamp, offset = self._max_timestamp
        self._indexes[1].maybe_append(timestamp, offset - self.base_offset)
        self._is_saved = write_indexes(self._disk, self._path, self._indexes)
        self._let_files_answer()

    def seal(self) -> None:
        """Mark the segment as inactive: complete index files are used from now on."""
        self._is_sealed = True
        self._let_files_answer()

    def _unseal(self) -> None:
        self._is_sealed, self._paged = False, None
        if self._indexes is None:
            self._load_whole_indexes()

    def _let_files_answer(self) -> None:
        """Replace indexes of a sealed segment that are in their files by paged indexes."""
        if self._is_sealed and self._is_saved and self._indexes is not None:
            self._paged = paged_indexes(self._disk, self._path, self._indexes)
            self._indexes = None

    def index_files(self) -> list[File]:
        """Return the existing index files, open, for a sync."""
        return open_index_files(self._disk, self._path)

    def release(self) -> None:
        """Drop the file; it closes with the last slice that uses it and opens again on demand."""
        self._file = None

    def truncate_to(self, offset: int) -> int:
        """Remove the batch that holds `offset` and all later ones; return the new end offset of the log."""
        self._unseal()
        found = self.locate(offset)
        if found is None:
            return offset
        offset_index, time_index = self._indexes or self._load_whole_indexes()
        self.file.truncate(found.position)
        self.size = found.position
        self._read_ends.clear()
        offset_index.truncate_to_position(self.size)
        time_index.truncate_to_offset(found.header.base_offset - self.base_offset)
        self.transaction_index.truncate_to(found.header.base_offset)
        self._restore_after_indexes()
        # Otherwise the files would refer to removed batches if the log stopped cleanly without another append.
        self.write_indexes()
        return min(offset, found.header.base_offset)

    def change_suffix(self, suffix: str, names: Sequence[str] = tuple(reversed(_SUFFIXES))) -> None:
        """Rename the existing files in the order of `names`; an open file stays open."""
        for name in names:
            path = self._prefix + name
            if self._disk.exists(path + self._suffix):
                self._disk.rename(path + self._suffix, path + suffix)
        self._suffix = suffix
        self._paged = None  # loaded again under the new names

    def note_moved(self, directory: str) -> None:
        """Use the files in a renamed folder; an open file stays open."""
        self._prefix = f"{directory}/{segment_name(self.base_offset)}"
        self._paged = None

    def mark_deleted(self) -> None:
        """Rename the files as deleted: the next start removes them; reads in progress continue."""
        for suffix in _SUFFIXES:
            path = self._prefix + suffix
            if self._disk.exists(path):
                self._disk.rename(path, path + DELETED_SUFFIX)

    def remove_deleted(self) -> None:
        """Remove the files renamed by `mark_deleted`; an open file closes with the last slice that uses it."""
        for suffix in _SUFFIXES:
            self._disk.remove(self._prefix + suffix + DELETED_SUFFIX)

    # -- reading

    def marker_of(self, location: BatchLocation) -> EndTransactionMarker | None:
        """Read the marker of a control batch, None for other control batches; raises CorruptRecordsError."""
        return decode_end_transaction_marker(self.file.pread(location.size_bytes, location.position))

    def locate(self, offset: int) -> BatchLocation | None:
        """Return the first batch with a last offset at or after `offset`; None if this segment has none."""
        start = self.offset_index.position_before(offset - self.base_offset)
        for found in self.headers(start):
            if found.header.last_offset >= offset:
                return found
        return None

    def position_of(self, offset: int, may_wait: bool = True) -> tuple[int, int] | None:
        """Return (position, first offset) of the batch that holds `offset` or follows it; None if there is none.

        Every fetch uses it: like `locate`, without parsing whole headers. Without `may_wait`, BlockingIOError is raised
        if the data is not in memory.
        """
        position = self._read_ends.get(offset)
        size = self.size
        if position is not None and position < size:
            return position, offset
        pread = self._pread(may_wait)
        offset_index = (self._indexes or self._paged or self._load_indexes())[0]
        position = offset_index.position_before(offset - self.base_offset, may_wait)
        chunk: Buffer = b""
        chunk_start = position
        while position < size:
            at = position - chunk_start
            if at + _SPAN.size > len(chunk):
                chunk = pread(self.index_interval_bytes + _SPAN.size, position)
                chunk_start, at = position, 0
            base_offset, length, last_offset_delta = _SPAN.unpack_from(chunk, at)
            if base_offset + last_offset_delta >= offset:
                return position, base_offset
            if length <= 0:
                raise CorruptRecordsError(f"{self.log_path} is damaged at byte {position}")
            position += length + LOG_OVERHEAD
        return None

    def remember_read_end(self, next_offset: int, position: int) -> None:
        """Record that the batch at `position` (or the present end of the file) begins with `next_offset`."""
        read_ends = self._read_ends
        if next_offset not in read_ends:
            if len(read_ends) >= _READ_ENDS_MAX:
                del read_ends[next(iter(read_ends))]
            read_ends[next_offset] = position

    def batch_size_at(self, position: int, may_wait: bool = True) -> int:
        """Return the size of the batch at a position; without `may_wait`, BlockingIOError if it is not in memory."""
        head = self._pread(may_wait)(HEADER_BYTES, position)
        return int.from_bytes(head[8:12], "big") + LOG_OVERHEAD

    def _pread(self, may_wait: bool) -> Callable[[int, int], Buffer]:
        if may_wait:
            return self.file.pread
        if self._file is None or not (self._indexes or self._paged):
            raise BlockingIOError(errno.EAGAIN, f"{self.log_path} is not open")
        return self._file.pread_in_memory

    def pread(self, location: BatchLocation, may_wait: bool = True) -> Buffer:
        """Read one batch; without `may_wait`, BlockingIOError if it is not in memory."""
        return self._pread(may_wait)(location.size_bytes, location.position)

    def headers(self, position: int = 0, may_wait: bool = True) -> Iterator[BatchLocation]:
        """Yield the batches from the one at `position` on, headers only; `may_wait` as in `position_of`."""
        pread = self._pread(may_wait)
        size = self.size
        chunk: Buffer = b""
        chunk_start = position
        while position + HEADER_BYTES <= size:
            at = position - chunk_start
            if at + HEADER_BYTES > len(chunk):
                # The first read is short: most look-ups end within an index interval.
                wanted = _HEADER_CHUNK_BYTES if chunk else 2 * self.index_interval_bytes
                chunk = pread(max(HEADER_BYTES, min(wanted, size - position)), position)
                chunk_start, at = position, 0
            header = RecordBatchHeader.parse(chunk, at)
            yield BatchLocation(position, header.size_bytes, header)
            position += header.size_bytes

    def checked_batches(self, position: int = 0) -> Iterator[tuple[BatchLocation, memoryview]]:
        """Yield the whole batches from `position` on, up to the first that is torn, damaged or out of order."""
        return checked_batches(self, position)

    # -- restoring

    def state(self, end_offset: int) -> SegmentState:
        """Return the state of the segment for all its batches, which end at `end_offset`."""
        offset_index, time_index = self._indexes or self._load_whole_indexes()
        return SegmentState(
            self.base_offset,
            end_offset,
            self.size,
            *self._max_timestamp,
            NO_TIMESTAMP if self.first_timestamp_ms is None else self.first_timestamp_ms,
            self.bytes_since_index,
            offset_index.copy(),
            time_index.copy(),
            self.transaction_index.to_bytes(),
        )

    def resume(self, known: SegmentState) -> bool:
        """Apply a checkpoint if the file has its batches; return whether it applies. `recover` then checks the rest."""
        transactions = TransactionIndex.from_bytes(known.transaction_index, self.base_offset)
        if known.base_offset != self.base_offset or not 0 < known.position <= self.size or transactions is None:
            return False
        end_offset = None
        for found, _ in self.checked_batches(known.offset_index.last_position):
            if found.position >= known.position:
                break
            end_offset = found.header.last_offset + 1 if found.position + found.size_bytes == known.position else None
        if end_offset != known.end_offset:
            return False
        self._indexes = (known.offset_index, known.time_index)
        self._is_saved = False
        self._max_timestamp = (known.max_timestamp_ms, known.max_timestamp_offset)
        self._transaction_index = transactions
        transactions.is_unsaved = True
        self._read_ends.clear()
        self.first_timestamp_ms = known.first_timestamp_ms
        self.bytes_since_index = known.bytes_since_index
        return True

    def recover(self, position: int = 0) -> Iterator[tuple[BatchLocation, memoryview]]:
        """Check every batch from `position`, truncate the file at the first invalid one, and rebuild both indexes.

        `position` is above 0 after `resume`. The transaction index becomes empty and is filled by the caller. Yields
        each valid batch, so that the caller can rebuild its state in the same pass; the iterator must be exhausted.
        """
        if position == 0:
            self._indexes = (OffsetIndex(), TimeIndex())
            self._is_saved = False
            self._max_timestamp = (NO_TIMESTAMP, self.base_offset)
            self.begin_transaction_index()
            self._read_ends.clear()
            self.first_timestamp_ms = None
            self.bytes_since_index = 0
        end = position
        for found, batch in self.checked_batches(position):
            header = found.header
            if header.last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
                break
            self._note_batch(header.last_offset, found.position, found.size_bytes, header.max_timestamp_ms)
            yield found, batch
            end = found.position + found.size_bytes
        if end != self.size:
            self.file.truncate(end)
            self.size = end

    def next_offset_after_clean_stop(self) -> int:
        """Return the offset after the last batch, read from the last index entry on; ValueError for a torn end."""
        if self.size == 0:
            return self.base_offset
        last: BatchLocation | None = None
        for found in self.headers(self.offset_index.last_position):
            last = found
        if last is None or last.position + last.size_bytes != self.size:
            raise ValueError(f"{self.log_path} does not end with a whole batch")
        return last.header.last_offset + 1

    def _load_indexes(self) -> Indexes | PagedIndexes:
        whole = self._load_whole_indexes()
        self._let_files_answer()
        return self._paged or whole

    def _load_whole_indexes(self) -> Indexes:
        self._indexes = read_indexes(self._disk, self._path, self.size)
        # Index files truncated at an entry by a power loss lack timestamps or make look-ups slow, and are rebuilt.
        if self._indexes is not None and self._restore_after_indexes():
            self._is_saved = True
            return self._indexes
        rebuilt = self._rebuild_indexes()
        self.is_rebuilt = True
        if not self._is_twin:
            self.write_indexes()
        return rebuilt

    def _rebuild_indexes(self) -> Indexes:
        """Build both indexes from the headers."""
        self._indexes = (OffsetIndex(), TimeIndex())
        self._is_saved = False
        self._max_timestamp = (NO_TIMESTAMP, self.base_offset)
        self.first_timestamp_ms = None
        self.bytes_since_index = 0
        for found in self.headers():
            self._note_batch(found.header.last_offset, found.position, found.size_bytes, found.header.max_timestamp_ms)
        return self._indexes

    def _restore_after_indexes(self) -> bool:
        """Restore the values that are not in the index files; return whether the indexes cover all batches."""
        assert self._indexes is not None
        offset_index, time_index = self._indexes
        last = time_index.last()
        self._max_timestamp = (
            (NO_TIMESTAMP, self.base_offset) if last is None else (last[0], last[1] + self.base_offset)
        )
        self.bytes_since_index = self.size - offset_index.last_position
        is_complete = True
        since_entry = 0
        for found in self.headers(offset_index.last_position):
            is_complete = is_complete and since_entry <= self.index_interval_bytes
            since_entry += found.size_bytes
            if found.header.max_timestamp_ms > self._max_timestamp[0]:
                self._max_timestamp = (found.header.max_timestamp_ms, found.header.last_offset)
        first_ms = next((first.header.max_timestamp_ms for first in self.headers()), None)
        self.first_timestamp_ms = first_ms
        return is_complete and not (last is None and first_ms is not None and first_ms >= 0)
