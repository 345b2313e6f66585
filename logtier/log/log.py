"""The log of one partition: segments, producers, leader epochs."""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from logtier.config import TopicConfig
from logtier.log.batch_validation import (
    Fields,
    check_checksum,
    check_produced_batch,
    split_batches,
    stamp_append_time,
)
from logtier.log.leader_epochs import LeaderEpochs
from logtier.log.producer_snapshots import ProducerSnapshots
from logtier.log.producer_state import ProducerStates
from logtier.log.retention import SegmentAge, segments_to_delete
from logtier.log.segment import RELATIVE_OFFSET_MAX, LogSegment
from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.protocol.topic_partition import TopicPartition
from logtier.records.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_TIMESTAMP,
    PREFIX,
    PREFIX_BYTES,
    CorruptRecordsError,
    RecordBatchHeader,
)
from logtier.runtime.disk import EMPTY_FILE, Buffer, Completion, Disk, File

_logger = logging.getLogger(__name__)

_INDEX_ENTRY_BYTES: Final = 8


class AppendInfo(NamedTuple):
    """What became of an append. `log_append_time_ms` is -1 with CreateTime; a duplicate appended nothing."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_count: int
    size_bytes: int
    duplicate: bool


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


class Log:
    """An append-only sequence of record batches in one folder.

    Invariants: offsets of batches strictly increase; every byte below `log_end_offset` is a whole batch whose checksum
    was verified; everything below `recovery_point` is on the device. Calls are synchronous and go to the page cache.
    Knows neither leaders nor networks: replication and coordinators call it. Made by `recovery.open_log`.

    Files: per segment `.log`, `.index`, `.timeindex` and `.snapshot` (see `segment`, `producer_state`),
    `leader-epoch-checkpoint`, `partition.metadata`; a deleted segment's files end in `.deleted` for a while.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        segments: list[LogSegment],
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        producers: ProducerStates,
        snapshots: ProducerSnapshots,
        leader_epochs: LeaderEpochs,
        roll_jitter_ms: int = 0,
    ) -> None:
        assert segments
        assert log_start_offset <= log_end_offset
        self._disk = disk
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.producers = producers
        self.leader_epochs = leader_epochs
        self._snapshots = snapshots
        self._segments = segments
        self._base_offsets = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self._roll_jitter_ms = roll_jitter_ms
        self._syncs: deque[tuple[Completion, int]] = deque()
        self._deleted: deque[tuple[int, LogSegment]] = deque()
        self._failure: str | None = None
        self._flushed_ms = segments[-1].modified_ms
        self.config = config

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def config(self) -> TopicConfig:
        """The topic's configs; may be replaced at any time."""
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config
        # What every append needs, one attribute away.
        self._log_append_time = config.message_timestamp_type == "LogAppendTime"
        self._index_entries_max = config.segment_index_bytes // _INDEX_ENTRY_BYTES
        self._active.index_interval_bytes = config.index_interval_bytes

    @property
    def segment_count(self) -> int:
        """Number of segments."""
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size for segment in self._segments)

    # -- appending

    def append_as_leader(self, records: Buffer, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append the batches of a produce request and give them their offsets. Keeps no reference to `records`.

        Raises KafkaError: corrupt_message, invalid_record, message_too_large, record_list_too_large, invalid_timestamp,
        unsupported_for_message_format, out_of_order_sequence_number, invalid_producer_epoch, kafka_storage_error.
        Nothing is appended then. A duplicate of one of the producer's last five batches returns that batch's offsets.
        """
        view = memoryview(records)
        if len(view) >= HEADER_BYTES:
            fields = HEADER.unpack_from(view)
            if fields[1] + LOG_OVERHEAD == len(view):
                check_produced_batch(view, fields, self._config, now_ms)
                return self._append_checked(view, fields, leader_epoch, now_ms)
        batches = list(split_batches(view))
        if not batches:
            raise KafkaError(ErrorCode.invalid_record, "there is no batch to append")
        for batch, fields in batches:
            check_produced_batch(batch, fields, self._config, now_ms)
            if fields[9] >= 0:
                raise KafkaError(
                    ErrorCode.invalid_record, "an idempotent producer sends one batch for a partition in a request"
                )
        infos = [self._append_checked(batch, fields, leader_epoch, now_ms) for batch, fields in batches]
        return infos[0]._replace(
            last_offset=infos[-1].last_offset,
            record_count=sum(info.record_count for info in infos),
            size_bytes=len(view),
        )

    def _append_checked(self, view: memoryview, fields: Fields, leader_epoch: int, now_ms: int) -> AppendInfo:
        (_, length, _, _, _, _, last_delta, _, max_ms, producer_id, epoch, sequence, count) = fields
        size = len(view)
        if producer_id >= 0:
            original = self.producers.check(producer_id, epoch, sequence, last_delta)
            if original is not None:
                return AppendInfo(
                    original.first_offset,
                    original.last_offset,
                    original.timestamp_ms if self._log_append_time else NO_TIMESTAMP,
                    self.log_start_offset,
                    count,
                    size,
                    True,
                )
        first_offset = self.log_end_offset
        last_offset = first_offset + last_delta
        if self._log_append_time:
            max_ms = now_ms
            head = stamp_append_time(view, fields, first_offset, leader_epoch, now_ms)
            buffers: list[Buffer] = [head, view[HEADER_BYTES:]]
        else:
            buffers = [PREFIX.pack(first_offset, length, leader_epoch), view[PREFIX_BYTES:]]
        if leader_epoch > self.leader_epochs.latest:
            self._begin_epoch(leader_epoch, first_offset)
        self._write(buffers, size, last_offset, max_ms, now_ms)
        if producer_id >= 0:
            self.producers.update(producer_id, epoch, sequence, last_delta, last_offset, max_ms)
        return AppendInfo(
            first_offset,
            last_offset,
            now_ms if self._log_append_time else NO_TIMESTAMP,
            self.log_start_offset,
            count,
            size,
            False,
        )

    def append_as_follower(self, records: Buffer) -> AppendInfo:
        """Append batches that a leader gave their offsets, unchanged; a cut last batch (fetches have it) is left out.

        Raises KafkaError: corrupt_message, invalid_record (offsets not above the log's end), kafka_storage_error.
        """
        view = memoryview(records)
        position = 0
        count = 0
        first_offset = self.log_end_offset
        while len(view) - position >= HEADER_BYTES:
            header = RecordBatchHeader(*HEADER.unpack_from(view, position))
            size = header.size_bytes
            if size < HEADER_BYTES or header.magic != MAGIC_V2:
                raise KafkaError(
                    ErrorCode.corrupt_message, f"a batch of the leader of {self.topic_partition} is damaged"
                )
            if position + size > len(view):
                break
            batch = view[position : position + size]
            check_checksum(batch, header.crc)
            if header.base_offset < self.log_end_offset or header.last_offset_delta < 0:
                raise KafkaError(
                    ErrorCode.invalid_record,
                    f"the leader of {self.topic_partition} sent offset {header.base_offset}, the log ends at "
                    f"{self.log_end_offset}",
                )
            if position == 0:
                first_offset = header.base_offset
            self._begin_epoch(header.partition_leader_epoch, header.base_offset)
            self._write([batch], size, header.last_offset, header.max_timestamp_ms, header.max_timestamp_ms)
            self.producers.replay(header)
            count += header.record_count
            position += size
        return AppendInfo(
            first_offset, self.log_end_offset - 1, NO_TIMESTAMP, self.log_start_offset, count, position, False
        )

    def _begin_epoch(self, leader_epoch: int, offset: int) -> None:
        """Before the epoch's first batch is written: a failure must leave nothing appended."""
        try:
            self.leader_epochs.assign(leader_epoch, offset)
        except OSError as error:
            raise self._storage_error("write", error) from error

    def _write(self, buffers: list[Buffer], size: int, last_offset: int, max_ms: int, now_ms: int) -> None:
        segment = self._active
        config = self._config
        first_ms = segment.first_timestamp_ms
        try:
            if (
                size > config.segment_bytes - segment.size
                or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
                or (segment.size and self._is_time_to_roll(segment, first_ms, max_ms, now_ms))
                or segment.is_index_full(self._index_entries_max)
            ):
                segment = self._roll_for(size, now_ms)
            if self._failure is not None:
                raise KafkaError(ErrorCode.kafka_storage_error, self._failure)
            segment.append(buffers, size, last_offset, max_ms)
        except OSError as error:
            raise self._storage_error("write", error) from error
        segment.modified_ms = now_ms
        self.log_end_offset = end = last_offset + 1
        if end - self.recovery_point >= config.flush_messages:
            self.flush()

    def _storage_error(self, what: str, error: OSError) -> KafkaError:
        return KafkaError(
            ErrorCode.kafka_storage_error, f"{self.topic_partition}: cannot {what} {self.directory}: {error.strerror}"
        )

    # -- rolling

    def _is_time_to_roll(self, segment: LogSegment, first_ms: int | None, max_ms: int, now_ms: int) -> bool:
        """By the time between the segment's first batch and the new one; by the clock where batches have no time."""
        waited_ms = now_ms - segment.created_ms if first_ms is None or first_ms < 0 or max_ms < 0 else max_ms - first_ms
        return waited_ms > self._config.segment_ms - self._roll_jitter_ms

    def _roll_for(self, size: int, now_ms: int) -> LogSegment:
        if size > self._config.segment_bytes:
            raise KafkaError(
                ErrorCode.record_list_too_large,
                f"{self.topic_partition}: a batch of {size} bytes is above segment.bytes, {self._config.segment_bytes}",
            )
        return self.roll(now_ms)

    def roll(self, now_ms: int) -> LogSegment:
        """Begin a new segment at the log's end; the old one is synced in the background. An empty one is kept."""
        old = self._active
        if old.size == 0 and old.base_offset == self.log_end_offset:
            return old
        self.poll_syncs()
        try:
            files = [old.file, *old.write_indexes()]
            self._snapshots.take(self.producers, self.log_end_offset, keep=self._base_offsets)
            new = LogSegment.create(
                self._disk,
                self.directory,
                self.log_end_offset,
                now_ms=now_ms,
                index_interval_bytes=self._config.index_interval_bytes,
            )
        except OSError as error:
            raise self._storage_error("begin a segment in", error) from error
        self._syncs.append((self._disk.fsync_in_background(files, [self.directory]), self.log_end_offset))
        old.release()
        self._segments.append(new)
        self._base_offsets.append(new.base_offset)
        self._active = new
        return new

    def maybe_roll(self, now_ms: int) -> bool:
        """Roll the active segment if it is older than segment.ms though nothing is appended; tell whether it rolled."""
        segment = self._active
        if segment.size and self._is_time_to_roll(segment, segment.first_timestamp_ms, now_ms, now_ms):
            self.roll(now_ms)
            return True
        return False

    # -- reading

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
            return self._read_older(offset, max_bytes, upper_bound_offset, min_one_batch)
        found = segment.position_of(offset)
        if found is None:
            return LogSlice(EMPTY_FILE, 0, 0, offset)
        return self._slice(segment, found, max_bytes, self.log_end_offset, upper_bound_offset, min_one_batch)

    def _read_older(self, offset: int, max_bytes: int, upper_bound_offset: int, min_one_batch: bool) -> LogSlice:
        """Read from a segment that is no longer written to; a gap at its end (compaction) leads to the next one."""
        for i in range(bisect_right(self._base_offsets, offset) - 1, len(self._segments)):
            segment = self._segments[i]
            found = segment.position_of(offset)
            if found is not None:
                is_last = i == len(self._segments) - 1
                end_offset = self.log_end_offset if is_last else self._base_offsets[i + 1]
                return self._slice(segment, found, max_bytes, end_offset, upper_bound_offset, min_one_batch)
        return LogSlice(EMPTY_FILE, 0, 0, offset)

    def _slice(
        self,
        segment: LogSegment,
        found: tuple[int, int],
        max_bytes: int,
        end_offset: int,
        upper_bound_offset: int,
        min_one_batch: bool,
    ) -> LogSlice:
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

    def batches(self, start_offset: int | None = None) -> Iterator[memoryview]:
        """Yield every whole batch from the one that holds `start_offset` (default: the log's start) to the log's end.

        For coordinators that load their state. Raises CorruptRecordsError where the files were damaged after recovery.
        """
        start = self.log_start_offset if start_offset is None else max(start_offset, self.log_start_offset)
        for segment in self._segments[max(0, bisect_right(self._base_offsets, start) - 1) :]:
            found = segment.position_of(start)
            if found is None:
                continue
            end = found[0]
            for location, batch in segment.checked_batches(end):
                yield batch
                end = location.position + location.size_bytes
            if end != segment.size:
                raise CorruptRecordsError(f"{segment.log_path} is damaged at byte {end}")

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """Find the first record whose timestamp is at least the given one, looking into its batch."""
        for segment in self._segments:
            if segment.size and segment.max_timestamp_ms >= timestamp_ms:
                found = segment.first_record_not_before(timestamp_ms, self.log_start_offset)
                if found is not None:
                    return TimestampOffset(*found)
        return None

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """Find the first record with the greatest timestamp of the log (KIP-734); None if there are no records."""
        newest: LogSegment | None = None
        for segment in self._segments:
            if segment.size and (newest is None or segment.max_timestamp_ms > newest.max_timestamp_ms):
                newest = segment
        if newest is None:
            return None
        found = newest.first_record_not_before(newest.max_timestamp_ms, self.log_start_offset)
        return None if found is None else TimestampOffset(*found)

    # -- deleting

    def delete_old_segments(self, now_ms: int, *, high_watermark: int | None = None) -> int:
        """Delete segments by retention time and size and before the log's start; return how many went.

        The active segment rolls first when it has expired as well.
        """
        count = segments_to_delete(
            self._ages(),
            total_bytes=self.size_bytes if self._config.retention_bytes >= 0 else 0,
            config=self._config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=self.log_end_offset if high_watermark is None else high_watermark,
        )
        if count == 0:
            return 0
        if count == len(self._segments):
            self.roll(now_ms)
        self._drop(self._segments[:count], now_ms)
        self._move_start_to(self._base_offsets[0])
        return count

    def _ages(self) -> Iterator[SegmentAge]:
        for i, segment in enumerate(self._segments):
            is_active = segment is self._active
            newest_ms = segment.max_timestamp_ms if segment.size else NO_TIMESTAMP
            yield SegmentAge(
                self.log_end_offset if is_active else self._base_offsets[i + 1],
                segment.size,
                segment.modified_ms if newest_ms < 0 else newest_ms,
                is_active,
            )

    def _drop(self, segments: list[LogSegment], now_ms: int) -> None:
        """Take segments out of the log; their files go after file.delete.delay.ms, for the sake of reads under way."""
        for segment in segments:
            segment.mark_deleted()
            segment.release()
            self._deleted.append((now_ms + self._config.file_delete_delay_ms, segment))
        gone = {id(segment) for segment in segments}
        self._segments = [segment for segment in self._segments if id(segment) not in gone]
        self._base_offsets = [segment.base_offset for segment in self._segments]

    def remove_deleted_files(self, now_ms: int) -> None:
        """Remove the files of segments whose delay is over."""
        while self._deleted and self._deleted[0][0] <= now_ms:
            self._deleted.popleft()[1].remove_deleted()

    def delete_records_before(self, offset: int) -> int:
        """Let the log begin at `offset` (DeleteRecords); whole segments before it go with the next retention check."""
        if offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.topic_partition}: offset {offset} is after the log's end, {self.log_end_offset}",
            )
        self._move_start_to(max(offset, self.log_start_offset))
        return self.log_start_offset

    def _move_start_to(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)
        self._snapshots.remove_before(self._base_offsets[0])

    def truncate_to(self, offset: int) -> None:
        """Drop everything from the batch that holds `offset` on: a follower's leader has less, or other, records."""
        if offset >= self.log_end_offset:
            return
        offset = max(offset, self.log_start_offset)
        keep = max(1, bisect_right(self._base_offsets, offset))
        now_ms = self._active.modified_ms
        for segment in self._segments[keep:]:
            segment.mark_deleted()
            segment.remove_deleted()
        del self._segments[keep:]
        del self._base_offsets[keep:]
        self._active = self._segments[-1]
        self._active.index_interval_bytes = self._config.index_interval_bytes
        self._active.modified_ms = now_ms
        # The log's start may lie inside of the batch that goes.
        self.log_end_offset = max(self.log_start_offset, self._active.truncate_to(offset))
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        self._syncs = deque((sync, min(point, self.log_end_offset)) for sync, point in self._syncs)
        self.leader_epochs.truncate_from_end(self.log_end_offset)
        self.producers = self._snapshots.restore(self._segments, self.log_end_offset)

    # -- durability

    def poll_syncs(self) -> None:
        """Advance the recovery point by the background syncs that are done."""
        while self._syncs and self._syncs[0][0].done():
            sync, recovery_point = self._syncs.popleft()
            try:
                sync.result()
            except OSError as error:
                # After a failed sync the kernel may have dropped the pages: nothing more is promised on this log.
                self._failure = f"{self.topic_partition}: cannot sync {self.directory}: {error.strerror}"
                _logger.error("%s; the partition takes no more records until the broker is restarted", self._failure)
                return
            self.recovery_point = max(self.recovery_point, recovery_point)

    def sync_in_background(self) -> None:
        """Sync all that is not on the device without waiting (after recovery)."""
        files: list[File] = []
        for segment in self._unsynced():
            files += [segment.file, *segment.write_indexes()]
        if files:
            self._syncs.append((self._disk.fsync_in_background(files, [self.directory]), self.log_end_offset))

    def flush(self) -> None:
        """Wait until every record is on the device."""
        if self.recovery_point >= self.log_end_offset:
            return
        try:
            for segment in self._unsynced():
                segment.flush()
            self._disk.fsync_directory(self.directory)
        except OSError as error:
            self._failure = f"{self.topic_partition}: cannot sync {self.directory}: {error.strerror}"
            raise self._storage_error("sync", error) from error
        self._syncs.clear()
        self.recovery_point = self.log_end_offset

    def flush_if_due(self, now_ms: int) -> None:
        """Flush if flush.ms have passed since the last time there was nothing to flush."""
        if self.recovery_point >= self.log_end_offset:
            self._flushed_ms = now_ms
        elif now_ms - self._flushed_ms >= self._config.flush_ms:
            self.flush()
            self._flushed_ms = now_ms

    def _unsynced(self) -> list[LogSegment]:
        return self._segments[max(0, bisect_right(self._base_offsets, self.recovery_point) - 1) :]

    def close(self) -> None:
        """Bring everything to the device, with a producer snapshot, so that the next start needs no recovery."""
        if self.log_end_offset > self._snapshots.latest:
            self._snapshots.take(self.producers, self.log_end_offset, keep=self._base_offsets)
        self.flush()
        self.release()

    def release(self) -> None:
        """Let go of all files."""
        for segment in self._segments:
            segment.release()
