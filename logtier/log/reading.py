"""Reading a log's segments: where the records from an offset on lie, which have a timestamp, which were aborted."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from logtier.log.retention import SegmentAge
from logtier.log.segment import LogSegment
from logtier.log.transaction_index import AbortedTransaction
from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.protocol.topic_partition import TopicPartition
from logtier.records.batch import NO_TIMESTAMP, CorruptRecordsError
from logtier.runtime.disk import EMPTY_FILE, File


class LogSlice(NamedTuple):
    """Bytes of a segment's file that begin with a whole batch; the last one may be cut. Size 0: nothing to read."""

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
    """The half of a log that reads: its segments in offset order, the last of which is written to.

    Invariants: `_base_offsets` are the segments' base offsets; every byte below `log_end_offset` is a whole batch. Only
    `Log` extends it.
    """

    log_start_offset: int
    log_end_offset: int
    topic_partition: TopicPartition
    _segments: list[LogSegment]
    _base_offsets: list[int]
    _active: LogSegment

    @property
    def segments(self) -> Sequence[LogSegment]:
        """The segments, oldest first; the last one is written to."""
        return self._segments

    @property
    def segment_count(self) -> int:
        """Number of segments."""
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size for segment in self._segments)

    def read(self, offset: int, max_bytes: int, *, upper_bound_offset: int, min_one_batch: bool) -> LogSlice:
        """Find the bytes from the batch that holds `offset` on: at most `max_bytes`, of one segment, below the bound.

        With `min_one_batch` the first batch comes whole even if it is larger. The bound is the end of a batch, at most
        the log's end. Raises KafkaError(offset_out_of_range) outside of the log; at its end there is nothing to read.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.topic_partition}: offset {offset} is not within {self.log_start_offset}..{self.log_end_offset}",
            )
        if offset >= upper_bound_offset:
            return LogSlice(EMPTY_FILE, 0, 0, offset)
        segment = self._active
        if offset < segment.base_offset:
            return read_older(
                self._segments,
                self._base_offsets,
                self.log_end_offset,
                offset,
                max_bytes,
                upper_bound_offset=upper_bound_offset,
                min_one_batch=min_one_batch,
            )
        found = segment.position_of(offset)
        if found is None:
            return LogSlice(EMPTY_FILE, 0, 0, offset)
        return slice_segment(segment, found, max_bytes, self.log_end_offset, upper_bound_offset, min_one_batch)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the transactions with records in [start, end) that were aborted. Raises CorruptRecordsError."""
        return aborted_transactions(self._segments, self._base_offsets, start_offset, end_offset)

    def end_of_slice(self, found: LogSlice) -> int:
        """Return an offset after every record of a slice that was just read, and close to its end."""
        return end_of_slice(self._segments, self._base_offsets, self.log_end_offset, found)

    def batches(self, start_offset: int | None = None) -> Iterator[memoryview]:
        """Yield every whole batch from the one that holds `start_offset` (default: the log's start) to the log's end.

        For coordinators that load their state. Raises CorruptRecordsError where the files were damaged after recovery.
        """
        start = self.log_start_offset if start_offset is None else max(start_offset, self.log_start_offset)
        return whole_batches(self._segments[max(0, bisect_right(self._base_offsets, start) - 1) :], start)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """Find the first record whose timestamp is at least the given one, looking into its batch."""
        return first_not_before(self._segments, timestamp_ms, self.log_start_offset)

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """Find the first record with the greatest timestamp of the log (KIP-734); None if there are no records."""
        return first_of_newest(self._segments, self.log_start_offset)


def read_older(
    segments: Sequence[LogSegment],
    base_offsets: Sequence[int],
    log_end_offset: int,
    offset: int,
    max_bytes: int,
    *,
    upper_bound_offset: int,
    min_one_batch: bool,
) -> LogSlice:
    """Read from a segment that is no longer written to; a gap at its end (compaction) leads to the next one."""
    for i in range(bisect_right(base_offsets, offset) - 1, len(segments)):
        segment = segments[i]
        found = segment.position_of(offset)
        if found is not None:
            end_offset = log_end_offset if i == len(segments) - 1 else base_offsets[i + 1]
            return slice_segment(segment, found, max_bytes, end_offset, upper_bound_offset, min_one_batch)
    return LogSlice(EMPTY_FILE, 0, 0, offset)


def slice_segment(
    segment: LogSegment,
    found: tuple[int, int],
    max_bytes: int,
    end_offset: int,
    upper_bound_offset: int,
    min_one_batch: bool,
) -> LogSlice:
    """Cut a slice that begins at `found` (position, first offset) out of a segment that ends at `end_offset`."""
    position, first_offset = found
    end = segment.size
    if upper_bound_offset < end_offset:
        bound = segment.position_of(upper_bound_offset)
        if bound is not None:
            end = bound[0]
        end_offset = upper_bound_offset
    size = end - position
    if size <= max_bytes:
        segment.remember_read_end(end_offset, end)
        return LogSlice(segment.file, position, size, first_offset)
    boundary = segment.offset_index.boundary_at_most(position + max_bytes)
    if boundary > position:  # whole batches only: nothing is sent twice
        return LogSlice(segment.file, position, boundary - position, first_offset)
    first_size = segment.batch_size_at(position)
    if first_size > max_bytes:
        if not min_one_batch:
            return LogSlice(EMPTY_FILE, 0, 0, first_offset)
        return LogSlice(segment.file, position, first_size, first_offset)
    return LogSlice(segment.file, position, max_bytes, first_offset)


def whole_batches(segments: Iterable[LogSegment], start_offset: int) -> Iterator[memoryview]:
    """Yield every batch from the one that holds `start_offset` on; raise CorruptRecordsError where one is damaged."""
    for segment in segments:
        found = segment.position_of(start_offset)
        if found is None:
            continue
        end = found[0]
        for location, batch in segment.checked_batches(end):
            yield batch
            end = location.position + location.size_bytes
        if end != segment.size:
            raise CorruptRecordsError(f"{segment.log_path} is damaged at byte {end}")


def first_not_before(
    segments: Iterable[LogSegment], timestamp_ms: int, log_start_offset: int
) -> TimestampOffset | None:
    """Find the first record whose timestamp is at least the given one."""
    for segment in segments:
        if segment.size and segment.max_timestamp_ms >= timestamp_ms:
            found = segment.first_record_not_before(timestamp_ms, log_start_offset)
            if found is not None:
                return TimestampOffset(*found)
    return None


def first_of_newest(segments: Iterable[LogSegment], log_start_offset: int) -> TimestampOffset | None:
    """Find the first record with the greatest timestamp of all."""
    newest: LogSegment | None = None
    for segment in segments:
        if segment.size and (newest is None or segment.max_timestamp_ms > newest.max_timestamp_ms):
            newest = segment
    if newest is None:
        return None
    found = newest.first_record_not_before(newest.max_timestamp_ms, log_start_offset)
    return None if found is None else TimestampOffset(*found)


def aborted_transactions(
    segments: Sequence[LogSegment], base_offsets: Sequence[int], start_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """Find the transactions with records in [start, end) whose abort marker is in the log, in the markers' order."""
    found: list[AbortedTransaction] = []
    for segment in segments[max(0, bisect_right(base_offsets, start_offset) - 1) :]:
        some, is_complete = segment.transaction_index.search(start_offset, end_offset)
        found += some
        if is_complete:
            break
    return found


def end_of_slice(
    segments: Sequence[LogSegment], base_offsets: Sequence[int], log_end_offset: int, found: LogSlice
) -> int:
    """Return an offset after every record of the slice: close to its end, by the offset index, without a read."""
    i = max(0, bisect_right(base_offsets, found.first_offset) - 1)
    relative = segments[i].offset_index.offset_at_or_after(found.position + found.size)
    if relative is not None:
        return base_offsets[i] + relative
    return base_offsets[i + 1] if i + 1 < len(segments) else log_end_offset


def segment_ages(
    segments: Sequence[LogSegment], base_offsets: Sequence[int], log_end_offset: int
) -> Iterator[SegmentAge]:
    """Tell retention what it needs to know of each segment; the last one is written to."""
    for i, segment in enumerate(segments):
        is_active = i == len(segments) - 1
        newest_ms = segment.max_timestamp_ms if segment.size else NO_TIMESTAMP
        yield SegmentAge(
            log_end_offset if is_active else base_offsets[i + 1],
            segment.size,
            segment.modified_ms if newest_ms < 0 else newest_ms,
            is_active,
        )
