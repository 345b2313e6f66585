"""Reads the segments of a log: slices from an offset, offsets by timestamp, aborted transactions."""

import errno
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.retention import Deletion, RetentionHold, SegmentAge, segments_to_delete
from headwater.logtier.log.segments.log_segments import LogSegments
from headwater.logtier.log.segments.segment import LogSegment
from headwater.logtier.log.segments.transaction_index import AbortedTransaction
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import NO_TIMESTAMP, CorruptRecordsError, decode_records
from headwater.logtier.runtime.disk import EMPTY_FILE, File

# Limits of decoding in a look-up by timestamp: they bound the time a malicious batch can take.
_LOOKED_AT_BYTES_MAX: Final = 16 << 20
_LOOKED_AT_RECORDS_MAX: Final = 100_000
# Larger batches are decoded on another thread.
_LOOKED_AT_AT_ONCE_BYTES: Final = 64 << 10


class LogSlice(NamedTuple):
    """Bytes of a segment's file, from the start of a batch; the last batch may be truncated. Size 0: no data."""

    file: File
    position: int
    size: int
    first_offset: int


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class LogReader:
    """The read half of a log.

    Invariant: every byte below `log_end_offset` belongs to a whole batch. `Log` and `LogView` extend it.
    """

    log_start_offset: int
    log_end_offset: int
    topic_partition: TopicPartition
    _segments: LogSegments

    @property
    def segments(self) -> LogSegments:
        """The segments, oldest first; the last segment is the active one."""
        return self._segments

    @property
    def segment_count(self) -> int:
        """Number of segments."""
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """Total size of all batches, in bytes."""
        return self._segments.size_bytes

    def read(
        self, offset: int, max_bytes: int, *, upper_bound_offset: int, min_one_batch: bool, may_wait: bool = True
    ) -> LogSlice:
        """Return the bytes from the batch that holds `offset`, of one segment.

        Args:
            max_bytes: Maximum size of the slice.
            upper_bound_offset: End of the last readable batch, at most the log end offset.
            min_one_batch: Return the first batch whole even if it is larger than `max_bytes`.
            may_wait: Without it, data that is not in memory raises BlockingIOError; read a `LogView` on another thread
                then.

        Raises:
            KafkaError: offset_out_of_range outside the log; at the log end offset the slice is empty.
            BlockingIOError: See `may_wait`.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.topic_partition}: offset {offset} is not within {self.log_start_offset}..{self.log_end_offset}",
            )
        if offset >= upper_bound_offset:
            return LogSlice(EMPTY_FILE, 0, 0, offset)
        segment = self._segments.active
        if offset < segment.base_offset:
            return read_older(
                self._segments,
                self.log_end_offset,
                offset,
                max_bytes,
                upper_bound_offset=upper_bound_offset,
                min_one_batch=min_one_batch,
                may_wait=may_wait,
            )
        found = segment.position_of(offset, may_wait)
        if found is None:
            return LogSlice(EMPTY_FILE, 0, 0, offset)
        return slice_segment(
            segment, found, max_bytes, self.log_end_offset, upper_bound_offset, min_one_batch, may_wait
        )

    def aborted_transactions(
        self, start_offset: int, end_offset: int, *, may_wait: bool = True
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in [start_offset, end_offset).

        Raises:
            CorruptRecordsError: An index is damaged.
        """
        return aborted_transactions(self._segments, start_offset, end_offset, may_wait)

    def old_segments(
        self, config: TopicConfig, now_ms: int, high_watermark: int, hold: RetentionHold | None
    ) -> Deletion:
        """Return which of the oldest segments retention deletes; see `segments_to_delete`."""
        return segments_to_delete(
            segment_ages(self._segments, self.log_end_offset),
            total_bytes=self.size_bytes if config.retention_bytes >= 0 else 0,
            config=config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
            hold=hold,
        )

    def end_of_slice(self, log_slice: LogSlice) -> int:
        """Return an offset after every record of a slice just read, close to the end of the slice."""
        return end_of_slice(self._segments, self.log_end_offset, log_slice)

    def batches(self, start_offset: int | None = None) -> Iterator[memoryview]:
        """Yield every whole batch from the one that holds `start_offset` (default: the log start offset).

        Coordinators load their state with it, in several turns: the log is read as it is at the call, from files opened
        at the call, so that compaction may replace them meanwhile.

        Raises:
            OSError: A file cannot be read.
            CorruptRecordsError: A file was damaged after recovery.
        """
        start = self.log_start_offset if start_offset is None else max(start_offset, self.log_start_offset)
        held = []
        for segment in self._segments.from_offset(start):
            if segment.size:
                twin = segment.twin(is_growing=False)
                _ = twin.file  # opened here, so that a file that takes its name later is not read
                # Only the first segment needs its index; it is read before another file can take its path.
                found = twin.position_of(start) if start > twin.base_offset else (0, 0)
                if found is not None:
                    held.append((twin, found[0]))
        return whole_batches(held)

    def offset_for_timestamp(self, timestamp_ms: int, *, may_wait: bool = True) -> TimestampOffset | None:
        """Return the first record with a timestamp of at least `timestamp_ms`, or None; its batch is decoded."""
        return first_not_before(self._segments, timestamp_ms, self.log_start_offset, may_wait)

    def offset_of_max_timestamp(self, *, may_wait: bool = True) -> TimestampOffset | None:
        """Return the first record with the greatest timestamp of the log (KIP-734); None if there are no records."""
        return first_of_newest(self._segments, self.log_start_offset, may_wait)


class LogView(LogReader):
    """A snapshot of a log from the segment of an offset on, for reading on another thread.

    Invariant: the view shares only immutable state with the log. `hand_back` gives the log the indexes loaded
    meanwhile.
    """

    def __init__(self, log: LogReader, offset: int) -> None:
        self.log_start_offset = log.log_start_offset
        self.log_end_offset = log.log_end_offset
        self.topic_partition = log.topic_partition
        self._originals = log.segments.from_offset(offset)
        active = log.segments.active
        self._segments = LogSegments(each.twin(is_growing=each is active) for each in self._originals)

    def hand_back(self) -> None:
        """Give the log the indexes that were loaded; called on the thread of the log."""
        for original, twin in zip(self._originals, self._segments, strict=True):
            original.adopt(twin)


def read_older(
    segments: LogSegments,
    log_end_offset: int,
    offset: int,
    max_bytes: int,
    *,
    upper_bound_offset: int,
    min_one_batch: bool,
    may_wait: bool = True,
) -> LogSlice:
    """Read from an inactive segment; a gap at its end, from compaction, leads to the next segment."""
    segment, end_offset = segments.holding(offset, log_end_offset)
    while (found := segment.position_of(offset, may_wait)) is None:
        if segment is segments.active:
            return LogSlice(EMPTY_FILE, 0, 0, offset)
        segment, end_offset = segments.holding(end_offset, log_end_offset)
    return slice_segment(segment, found, max_bytes, end_offset, upper_bound_offset, min_one_batch, may_wait)


def slice_segment(
    segment: LogSegment,
    place: tuple[int, int],
    max_bytes: int,
    end_offset: int,
    upper_bound_offset: int,
    min_one_batch: bool,
    may_wait: bool = True,
) -> LogSlice:
    """Return a slice starting at `place` (position, first offset) of a segment that ends at `end_offset`."""
    position, first_offset = place
    end = segment.size
    if upper_bound_offset < end_offset:
        bound = segment.position_of(upper_bound_offset, may_wait)
        if bound is not None:
            end = bound[0]
        end_offset = upper_bound_offset
    size = end - position
    if size <= max_bytes:
        segment.remember_read_end(end_offset, end)
        return LogSlice(segment.file, position, size, first_offset)
    boundary = segment.offset_index.boundary_at_most(position + max_bytes, may_wait)
    if boundary > position:  # whole batches only: nothing is sent twice
        return LogSlice(segment.file, position, boundary - position, first_offset)
    first_size = segment.batch_size_at(position, may_wait)
    if first_size > max_bytes:
        if not min_one_batch:
            return LogSlice(EMPTY_FILE, 0, 0, first_offset)
        return LogSlice(segment.file, position, first_size, first_offset)
    return LogSlice(segment.file, position, max_bytes, first_offset)


def whole_batches(segments: Iterable[tuple[LogSegment, int]]) -> Iterator[memoryview]:
    """Yield every batch of the segments from a position on.

    Raises:
        CorruptRecordsError: A batch is damaged.
    """
    for segment, end in segments:
        for location, batch in segment.checked_batches(end):
            yield batch
            end = location.position + location.size_bytes
        if end != segment.size:
            raise CorruptRecordsError(f"{segment.log_path} is damaged at byte {end}")


def first_not_before(
    segments: Iterable[LogSegment], timestamp_ms: int, log_start_offset: int, may_wait: bool = True
) -> TimestampOffset | None:
    """Return the first record with a timestamp of at least `timestamp_ms`, or None."""
    for segment in segments:
        if segment.size and segment.newest_ms(may_wait) >= timestamp_ms:
            found = first_record_not_before(segment, timestamp_ms, log_start_offset, may_wait)
            if found is not None:
                return found
    return None


def first_of_newest(
    segments: Iterable[LogSegment], log_start_offset: int, may_wait: bool = True
) -> TimestampOffset | None:
    """Return the first record with the greatest timestamp, or None without records."""
    newest: LogSegment | None = None
    newest_ms = NO_TIMESTAMP - 1
    for segment in segments:
        if segment.size and (max_ms := segment.newest_ms(may_wait)) > newest_ms:
            newest, newest_ms = segment, max_ms
    return None if newest is None else first_record_not_before(newest, newest_ms, log_start_offset, may_wait)


def first_record_not_before(
    segment: LogSegment, timestamp_ms: int, start_offset: int, may_wait: bool
) -> TimestampOffset | None:
    """Return a segment's first record at or after `start_offset` with a timestamp of at least `timestamp_ms`.

    Only the batch that holds the record is decoded. The batch's first offset is returned if its records cannot be
    decoded, contradict the batch header (the broker does not check them on append), or are too large to decode: a
    consumer that reads there sees the error.

    Raises:
        BlockingIOError: Decoding needs another thread, without `may_wait`.
    """
    relative = segment.time_index.offset_before(timestamp_ms, may_wait)
    start = segment.offset_index.position_before(max(relative or 0, start_offset - segment.base_offset), may_wait)
    for found in segment.headers(start, may_wait):
        header = found.header
        if header.max_timestamp_ms < timestamp_ms or header.last_offset < start_offset:
            continue
        epoch = header.partition_leader_epoch
        of_batch = TimestampOffset(header.max_timestamp_ms, max(header.base_offset, start_offset), epoch)
        if header.record_count > _LOOKED_AT_RECORDS_MAX:
            return of_batch
        if not may_wait and found.size_bytes > _LOOKED_AT_AT_ONCE_BYTES:
            raise BlockingIOError(errno.EAGAIN, f"{segment.log_path}: a large batch must be decoded on another thread")
        try:
            records = decode_records(segment.pread(found, may_wait), limit_bytes=_LOOKED_AT_BYTES_MAX)
        except CorruptRecordsError:
            return of_batch
        for record in records:
            if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                if record.timestamp_ms > header.max_timestamp_ms or record.offset > header.last_offset:
                    return of_batch
                return TimestampOffset(record.timestamp_ms, record.offset, epoch)
    return None


def aborted_transactions(
    segments: LogSegments,
    start_offset: int,
    end_offset: int,
    may_wait: bool = True,
) -> list[AbortedTransaction]:
    """Return the aborted transactions with records in [start_offset, end_offset), ordered by abort marker."""
    found: list[AbortedTransaction] = []
    for segment in segments.from_offset(start_offset):
        if not (may_wait or segment.has_transaction_index):
            raise BlockingIOError(
                errno.EAGAIN, f"{segment.log_path}: the index of aborted transactions is not in memory"
            )
        some, is_complete = segment.transaction_index.search(start_offset, end_offset)
        found += some
        if is_complete:
            break
    return found


def end_of_slice(segments: LogSegments, log_end_offset: int, log_slice: LogSlice) -> int:
    """Return an offset after every record of the slice, close to its end, without reading the log."""
    segment, end_offset = segments.holding(log_slice.first_offset, log_end_offset)
    relative = segment.offset_index.offset_at_or_after(log_slice.position + log_slice.size)
    return end_offset if relative is None else segment.base_offset + relative


def segment_ages(segments: LogSegments, log_end_offset: int) -> Iterator[SegmentAge]:
    """Yield size, age and end offset of each segment for retention; the last segment is the active one."""
    for i, segment in enumerate(segments):
        newest_ms = segment.max_timestamp_ms if segment.size else NO_TIMESTAMP
        yield SegmentAge(
            segments.end_offset(i, log_end_offset),
            segment.size,
            segment.modified_ms if newest_ms < 0 else newest_ms,
            segment is segments.active,
        )
