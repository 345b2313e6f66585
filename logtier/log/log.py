"""The log of one partition: segments, producers, leader epochs."""

import logging
import os
from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.active_checkpoints import ActiveCheckpoints
from headwater.logtier.log.appending.append_info import AppendInfo
from headwater.logtier.log.appending.batch_validation import (
    Fields,
    check_produced_batch,
    not_one_batch,
    split_replicated,
    stamp_append_time,
)
from headwater.logtier.log.appending.recompression import PRODUCER, recompressed
from headwater.logtier.log.appending.record_frames import CheckedRecords
from headwater.logtier.log.directory_health import DirectoryHealth
from headwater.logtier.log.durability import Durability, FlushRound, Post
from headwater.logtier.log.leader_epochs import EPOCHS_FILE
from headwater.logtier.log.loaded_log import LoadedLog
from headwater.logtier.log.partition_metadata import PARTITION_METADATA, write_partition_metadata
from headwater.logtier.log.producers.producer_snapshot_codec import encode_snapshot
from headwater.logtier.log.producers.producer_snapshots import NO_SNAPSHOT
from headwater.logtier.log.producers.producer_state import ProducerStates, Verification
from headwater.logtier.log.reading import LogReader, LogSlice, TimestampOffset
from headwater.logtier.log.retention import HOLD_ALL, roll_interval_ms
from headwater.logtier.log.segments.active_checkpoint import ActiveCheckpoint
from headwater.logtier.log.segments.deleted_segments import DeletedSegments
from headwater.logtier.log.segments.log_segments import LogSegments
from headwater.logtier.log.segments.offset_index import ENTRY as OFFSET_ENTRY
from headwater.logtier.log.segments.segment import RELATIVE_OFFSET_MAX, LogSegment
from headwater.logtier.log.segments.segment_leases import SegmentLeases, SegmentUse
from headwater.logtier.log.segments.time_index import ENTRY as TIME_ENTRY
from headwater.logtier.log.segments.transaction_index import AbortedTransaction
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    PREFIX,
    PREFIX_BYTES,
    TRANSACTIONAL,
    EndTransactionMarker,
    decode_end_transaction_marker,
    end_transaction_marker,
)
from headwater.logtier.runtime.disk import Buffer, Disk

__all__ = ["AppendInfo", "Log", "LogSlice", "TimestampOffset"]

_logger = logging.getLogger(__name__)

#: Creates a named tuple without its generated __new__, whose cost would arise for every batch.
_new: Final = tuple.__new__


class Log(LogReader):
    """An append-only sequence of record batches in one folder.

    Invariants: batch offsets strictly increase; every byte below `log_end_offset` belongs to a whole batch with a
    verified checksum; `durability` tracks which records are on the device. Calls are synchronous and write to the page
    cache. The log knows neither leaders nor the network: replication and coordinators call it. `opening.open_log`
    creates it. Its attributes are set by the log alone.

    Files: per segment `.log`, `.index`, `.timeindex` and `.snapshot` (see `segment`, `producer_state`),
    `leader-epoch-checkpoint`, `partition.metadata`. The files of a deleted segment have the suffix `.deleted` for
    file.delete.delay.ms.
    """

    def __init__(
        self,
        disk: Disk,
        loaded: LoadedLog,
        config: TopicConfig,
        *,
        roll_jitter_ms: int = 0,
        health: DirectoryHealth | None = None,
        post: Post | None = None,
    ) -> None:
        """Take over a loaded log; `post` reports the end of syncs, without it `durability.poll` must be called."""
        self._disk = disk
        self.directory = directory = loaded.directory
        self.topic_partition = loaded.topic_partition
        self.topic_id = loaded.topic_id
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.producers = loaded.producers
        self.leader_epochs = loaded.leader_epochs
        self._snapshots = loaded.snapshots
        self._segments = segments = LogSegments(loaded.segments)
        for segment in loaded.segments[:-1]:
            segment.seal()
        self._roll_jitter_ms = roll_jitter_ms
        self.health = health or DirectoryHealth(directory)
        self.durability = Durability(
            disk,
            self.health,
            self,
            flushed_offset=loaded.recovery_point,
            now_ms=segments.active.modified_ms,
            directories=() if loaded.is_on_device else (directory, os.path.dirname(directory)),
            # Lost with a power loss, they would leave promised records without a topic, or without their epochs.
            written_files=() if loaded.is_on_device else (PARTITION_METADATA, EPOCHS_FILE),
            post=post,
        )
        self._deleted = DeletedSegments(disk)
        self._swept_bytes = 0  # see `note_swept`
        # Bytes in segments rolled since open, excluding the bytes that were checked at open.
        self._rolled_bytes = -segments.active.size if loaded.is_on_device else 0
        self._checkpoints = ActiveCheckpoints(disk)
        #: Number of removals of records at the end.
        self.truncations = 0
        #: Leases on older segments: a leased segment is in use by one task.
        self.leases = SegmentLeases()
        self.configure(config)

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def config(self) -> TopicConfig:
        """The configs of the topic."""
        return self._config

    def configure(self, config: TopicConfig) -> None:
        """Apply the configs of the topic; may be called at any time."""
        self._config = config
        # Values that every append needs, computed once.
        self._log_append_time = config.message_timestamp_type == "LogAppendTime"
        self._recompresses = config.compression_type != PRODUCER
        self._offset_entries_max = config.segment_index_bytes // OFFSET_ENTRY.size
        # The last entry is reserved for the segment's greatest timestamp, written when the segment ends.
        self._time_entries_max = config.segment_index_bytes // TIME_ENTRY.size - 1
        self._roll_ms = roll_interval_ms(config)
        active = self._segments.active
        active.index_interval_bytes = config.index_interval_bytes
        active.index_room = 0  # forces a recount

    # -- appending

    def append_as_leader(
        self,
        records: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        verification: Verification | None = None,
        is_coordinator: bool = False,
    ) -> AppendInfo:
        """Append the single batch of a partition in a produce request, and assign its offsets.

        Offsets are written into `records` if the buffer is writable; the log keeps no reference to it. A transactional
        batch without an ongoing transaction in this log needs the `verification` begun for it. The batches of a
        coordinator have no sequence numbers. A duplicate of one of a producer's last five batches returns its offsets.

        Raises:
            KafkaError: corrupt_message, invalid_record, message_too_large, record_list_too_large, invalid_timestamp,
                out_of_order_sequence_number, invalid_producer_epoch, invalid_txn_state, kafka_storage_error; nothing is
                appended.
        """
        if self._recompresses:
            records = recompressed(records, self._config)
        view = memoryview(records)
        size = len(view)
        if size < HEADER_BYTES:
            raise not_one_batch(view)
        fields = HEADER.unpack_from(view)
        if fields[1] + LOG_OVERHEAD != size:
            raise not_one_batch(view)
        is_checked = records.__class__ is CheckedRecords
        check_produced_batch(view, fields, self._config, now_ms, is_coordinator, is_checked)
        return self._append_checked(view, fields, leader_epoch, now_ms, verification)

    def _append_checked(
        self, view: memoryview, fields: Fields, leader_epoch: int, now_ms: int, verification: Verification | None
    ) -> AppendInfo:
        (_, length, _, _, _, attributes, last_delta, _, max_ms, producer_id, epoch, sequence, count) = fields
        size = len(view)
        is_transactional = attributes & TRANSACTIONAL != 0
        first_offset = self.log_end_offset
        if producer_id >= 0:
            batch = (producer_id, epoch, sequence, last_delta, first_offset)
            if is_transactional:
                original = self.producers.check_transactional(*batch, verification)
            else:
                original = self.producers.check(*batch)
            if original is not None:
                return AppendInfo(
                    original.first_offset,
                    original.last_offset,
                    original.timestamp_ms if self._log_append_time else NO_TIMESTAMP,
                    self.log_start_offset,
                    count,
                    size,
                    True,
                    self.durability.round_of(original.last_offset),
                )
        last_offset = first_offset + last_delta
        if self._log_append_time:
            max_ms = now_ms
            head = stamp_append_time(view, fields, first_offset, leader_epoch, now_ms)
            buffers: list[Buffer] = [head, view[HEADER_BYTES:]]
        elif view.readonly:
            buffers = [PREFIX.pack(first_offset, length, leader_epoch), view[PREFIX_BYTES:]]
        else:
            # The request is not read again after its response, and one buffer is written faster than two.
            PREFIX.pack_into(view, 0, first_offset, length, leader_epoch)
            buffers = [view]
        if leader_epoch > self.leader_epochs.latest:
            self.begin_epoch(leader_epoch, first_offset)
        flush = self._write(buffers, size, last_offset, max_ms, now_ms)
        if producer_id >= 0:
            self.producers.update(
                producer_id, epoch, sequence, last_delta, last_offset, max_ms, is_transactional=is_transactional
            )
        time_ms = now_ms if self._log_append_time else NO_TIMESTAMP
        info = (first_offset, last_offset, time_ms, self.log_start_offset, count, size, False, flush)
        return _new(AppendInfo, info)

    def append_end_txn_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        transaction_version: int,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendInfo:
        """Append the marker that ends a producer's transaction in this log; a repeated marker appends nothing.

        Raises KafkaError: invalid_producer_epoch, transaction_coordinator_fenced, kafka_storage_error.
        """
        offset = self.log_end_offset
        time_ms = now_ms if self._log_append_time else NO_TIMESTAMP
        if self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version):
            flush = self.durability.round_of(offset - 1)
            return AppendInfo(offset, offset - 1, time_ms, self.log_start_offset, 0, 0, True, flush)
        batch = end_transaction_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=now_ms,
            base_offset=offset,
            partition_leader_epoch=leader_epoch,
            is_log_append_time=self._log_append_time,
        )
        if leader_epoch > self.leader_epochs.latest:
            self.begin_epoch(leader_epoch, offset)
        try:
            len(self._segments.active.transaction_index)  # A read that may fail precedes the write of the marker.
        except OSError as error:
            raise self._storage_error("read", error) from error
        flush = self._write([batch], len(batch), offset, now_ms, now_ms)
        marker = EndTransactionMarker(committed, coordinator_epoch)
        self._note_aborted(self.producers.end_transaction(producer_id, producer_epoch, marker, offset, now_ms))
        return AppendInfo(offset, offset, time_ms, self.log_start_offset, 1, len(batch), False, flush)

    def _note_aborted(self, transaction: AbortedTransaction | None) -> None:
        if transaction is not None:
            self._segments.active.transaction_index.append(transaction)

    def append_as_follower(self, records: Buffer) -> AppendInfo:
        """Append batches with offsets assigned by the leader, unchanged; a truncated last batch of a fetch is ignored.

        Raises KafkaError: corrupt_message, invalid_record (an offset below the log end offset), kafka_storage_error.
        """
        first_offset: int | None = None
        count = size = 0
        for batch, header in split_replicated(memoryview(records)):
            if header.base_offset < self.log_end_offset or header.last_offset_delta < 0:
                raise KafkaError(
                    ErrorCode.invalid_record,
                    f"the leader of {self.topic_partition} sent offset {header.base_offset}, the log ends at "
                    f"{self.log_end_offset}",
                )
            if first_offset is None:
                first_offset = header.base_offset
            self.begin_epoch(header.partition_leader_epoch, header.base_offset)
            self._write([batch], len(batch), header.last_offset, header.max_timestamp_ms, header.max_timestamp_ms)
            self._note_aborted(
                self.producers.replay(header, decode_end_transaction_marker(batch) if header.is_control else None)
            )
            count += header.record_count
            size += len(batch)
        end = self.log_end_offset
        first_offset = end if first_offset is None else first_offset
        return AppendInfo(first_offset, end - 1, NO_TIMESTAMP, self.log_start_offset, count, size, False)

    def begin_epoch(self, leader_epoch: int, offset: int) -> None:
        """Record a new epoch before its first batch is written; raises KafkaError (kafka_storage_error)."""
        if leader_epoch != self.leader_epochs.latest:
            self.durability.add_written(EPOCHS_FILE)
        try:
            self.leader_epochs.assign(leader_epoch, offset)
        except OSError as error:
            raise self._storage_error("write", error) from error

    def _write(self, buffers: list[Buffer], size: int, last_offset: int, max_ms: int, now_ms: int) -> FlushRound | None:
        segment = self._segments.active
        config = self._config
        try:
            if (
                size > config.segment_bytes - segment.size
                or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
                or (segment.size and self._is_time_to_roll(segment, segment.first_timestamp_ms, max_ms, now_ms))
                or (segment.index_room <= 0 and segment.is_index_full(self._offset_entries_max, self._time_entries_max))
            ):
                segment = self._roll_for(size, now_ms)
            if self.health.failure is not None:
                raise KafkaError(ErrorCode.kafka_storage_error, f"{self.topic_partition}: {self.health.failure}")
            segment.append(buffers, size, last_offset, max_ms)
        except OSError as error:
            raise self._storage_error("write", error) from error
        segment.modified_ms = now_ms
        self.log_end_offset = end = last_offset + 1
        if end - self.durability.requested_offset >= config.flush_messages:
            return self.durability.request()
        return None

    def _storage_error(self, what: str, error: OSError) -> KafkaError:
        self.health.observe(f"{what} {self.directory}", error)
        return KafkaError(
            ErrorCode.kafka_storage_error, f"{self.topic_partition}: cannot {what} {self.directory}: {error.strerror}"
        )

    # -- rolling

    def _is_time_to_roll(self, segment: LogSegment, first_ms: int | None, max_ms: int, now_ms: int) -> bool:
        """Compare record timestamps with the roll interval; without timestamps, compare the segment's age."""
        waited_ms = now_ms - segment.created_ms if first_ms is None or first_ms < 0 or max_ms < 0 else max_ms - first_ms
        return waited_ms > self._roll_ms - self._roll_jitter_ms

    def _roll_for(self, size: int, now_ms: int) -> LogSegment:
        if size > self._config.segment_bytes:
            raise KafkaError(
                ErrorCode.record_list_too_large,
                f"{self.topic_partition}: a batch of {size} bytes is above segment.bytes, {self._config.segment_bytes}",
            )
        return self.roll(now_ms)

    def roll(self, now_ms: int) -> LogSegment:
        """Start a segment at the log end offset and sync the old one in the background; an empty segment is reused."""
        old = self._segments.active
        if old.size == 0 and old.base_offset == self.log_end_offset:
            return old
        try:
            old.write_indexes()
            self._snapshots.take(self.producers, self.log_end_offset, keep=self._segments.base_offsets)
            new = self._new_segment(self.log_end_offset, now_ms)
        except OSError as error:
            raise self._storage_error("begin a segment in", error) from error
        old.seal()
        old.release()
        self._rolled_bytes += old.size
        self._segments.append(new)
        self.durability.add_names_in(self.directory)
        self.durability.request()
        return new

    def _new_segment(self, offset: int, now_ms: int) -> LogSegment:
        interval = self._config.index_interval_bytes
        return LogSegment.create(self._disk, self.directory, offset, now_ms=now_ms, index_interval_bytes=interval)

    def maybe_roll(self, now_ms: int) -> bool:
        """Roll the active segment if it is older than segment.ms; return whether it rolled.

        Both the timestamp of its first record and its age by the clock must exceed the limit.
        """
        segment = self._segments.active
        # Old records do not make an old segment: otherwise a replay of old data would roll at every check.
        is_old = now_ms - segment.created_ms > self._roll_ms - self._roll_jitter_ms
        if segment.size and is_old and self._is_time_to_roll(segment, segment.first_timestamp_ms, now_ms, now_ms):
            self.roll(now_ms)
            return True
        return False

    # -- taking over

    def take_topic_id(self, topic_id: UUID) -> None:
        """Store the topic id in the log and its folder where it was unknown; raises OSError."""
        write_partition_metadata(self._disk, self.directory, topic_id)
        self.topic_id = topic_id

    def take_producers(self, producers: ProducerStates) -> None:
        """Take over the producer states of another log with the same records, which knows more producers."""
        self.producers = producers

    # -- transactions

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset: all records below it belong to no transaction or to a completed one."""
        return max(self.producers.last_stable_offset(high_watermark), self.log_start_offset)

    # -- deleting

    def delete_old_segments(self, now_ms: int, high_watermark: int) -> int:
        """Delete segments by retention time and size and before the log start offset; return their number.

        No record at or above the high watermark is deleted, and none by time or size if the topic has groups that hold
        records: `retention_holds` deletes what these have passed. An expired active segment is rolled first.
        """
        hold = HOLD_ALL if self._config.retention_hold_groups else None
        return self.delete_oldest(self.old_segments(self._config, now_ms, high_watermark, hold).count, now_ms)

    def delete_oldest(self, count: int, now_ms: int) -> int:
        """Delete the oldest segments and return their number: 0 while the log is being cleaned."""
        if count == 0 or self.leases.are_out_for(SegmentUse.CLEANING):
            return 0
        if count == len(self._segments):
            try:
                self.roll(now_ms)
            except KafkaError:
                # Probably a full disk: deleting the other segments frees space.
                count -= 1
                if count == 0:
                    raise
        self._let_go(self._segments.remove_oldest(count), now_ms)
        self._move_start_to(self._segments[0].base_offset)
        return count

    def replace_segments(self, old: Sequence[LogSegment], new: LogSegment, now_ms: int) -> None:
        """Replace adjacent inactive segments by a cleaned segment (see `segment_swap`)."""
        new.seal()
        self._segments.replace(old, new)
        self._let_go(old, now_ms)

    def _let_go(self, segments: Sequence[LogSegment], now_ms: int) -> None:
        """Remove the files of deleted segments after file.delete.delay.ms, since reads may still use them."""
        for segment in segments:
            self._deleted.add(segment, now_ms + self._config.file_delete_delay_ms)

    def remove_deleted_files(self, now_ms: int) -> None:
        """Remove the files of deleted segments whose delay has passed."""
        self._deleted.remove_due(now_ms)

    def delete_records_before(self, offset: int, high_watermark: int) -> int:
        """Raise the log start offset (DeleteRecords) and return it; whole segments go with the next retention check.

        Raises KafkaError (offset_out_of_range) for an offset above the high watermark.
        """
        assert high_watermark <= self.log_end_offset, f"{self.topic_partition}: watermark {high_watermark} past its end"
        if offset > high_watermark:
            reason = f"{self.topic_partition}: offset {offset} is above the high watermark, {high_watermark}"
            raise KafkaError(ErrorCode.offset_out_of_range, reason)
        self._move_start_to(max(offset, self.log_start_offset))
        return self.log_start_offset

    def _move_start_to(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)
        self._snapshots.remove_before(self._segments[0].base_offset)

    def truncate_to(self, offset: int) -> None:
        """Remove the batch that holds `offset` and all later batches, where a follower diverges from its leader.

        Raises:
            KafkaError: kafka_storage_error; the folder is offline, since the log is incomplete.
        """
        try:
            if offset < self.log_end_offset:
                end = self._segments.truncate_to(max(offset, self.log_start_offset), self._config.index_interval_bytes)
                # The log start offset may lie inside the removed batch.
                self.log_end_offset = max(self.log_start_offset, end)
                self.durability.truncate_to(self.log_end_offset)
                self._note_truncated()
                self.producers = self._snapshots.restore(self._segments, self.log_end_offset)
            self.durability.add_written(EPOCHS_FILE)
            self.leader_epochs.truncate_from_end(self.log_end_offset)
        except OSError as error:
            raise self._broken("truncate", error) from error

    def restart_at(self, offset: int) -> None:
        """Remove all records and begin anew at `offset`: the leader's log has no record in common with this one.

        Raises:
            KafkaError: kafka_storage_error; the folder is offline, since the log is incomplete.
        """
        now_ms = self._segments.active.modified_ms
        try:
            self._segments = self._segments.replaced_by(lambda: self._new_segment(offset, now_ms))
            self.log_start_offset = self.log_end_offset = offset
            self.durability.restart_at(offset)
            self._note_truncated()
            self._snapshots.remove_after(NO_SNAPSHOT)
            self.producers = ProducerStates()
            self.durability.add_written(EPOCHS_FILE)
            self.leader_epochs.clear()
        except OSError as error:
            raise self._broken("truncate", error) from error

    def _note_truncated(self) -> None:
        self.truncations += 1
        self._rolled_bytes = self._swept_bytes = 0
        self._checkpoints.restart(self.directory)
        self.durability.add_names_in(self.directory)

    def _broken(self, what: str, error: OSError) -> KafkaError:
        self.health.fail(f"cannot {what} {self.directory}: {error.strerror or error}")
        return self._storage_error(what, error)

    # -- durability

    def flush(self) -> None:
        """Block until every record is on the device."""
        if not self.durability.is_complete:
            self.durability.flush()

    @property
    def grown_bytes(self) -> int:
        """Bytes appended since the log was opened or truncated; after a crash including the active segment at open."""
        return self._rolled_bytes + self._segments.active.size

    @property
    def unswept_bytes(self) -> int:
        """Bytes appended since the last flush of all logs."""
        return self._rolled_bytes + self._segments.active.size - self._swept_bytes

    def note_swept(self) -> None:
        """Record that a flush of all logs begins."""
        self._swept_bytes = self.grown_bytes

    def active_checkpoint(self, grown_bytes: int) -> ActiveCheckpoint | None:
        """Return a checkpoint of the active segment if the log grew by `grown_bytes` since the last checkpoint.

        It may be written when all records below its end are on the device, unless `checkpoints_forgotten` has changed.
        """
        segment = self._segments.active

        def make() -> ActiveCheckpoint:
            state, producers = segment.state(self.log_end_offset), encode_snapshot(self.producers)
            return ActiveCheckpoint(self.topic_id, state, producers, tuple(self.leader_epochs.entries()))

        return self._checkpoints.next(grown_bytes, self.grown_bytes, segment, make)

    def forget_checkpoint(self, among: Collection[int] | None = None) -> None:
        """Invalidate the checkpoint of the active segment, including a write in progress; raises OSError.

        With `among`, the checkpoint is invalidated only if the base offset of its segment is among them.
        """
        if self._checkpoints.forget(self.directory, among):
            self.durability.add_names_in(self.directory)

    @property
    def checkpoints_forgotten(self) -> int:
        """Number of invalidations of the checkpoint of the active segment."""
        return self._checkpoints.forgotten

    def prepare_close(self) -> bool:
        """Write the producer snapshot and indexes for a start without recovery; return whether a sync is needed."""
        is_noted = self._snapshots.latest == self.log_end_offset or not self.log_end_offset
        if is_noted and self.durability.is_complete:
            return False
        if not is_noted:
            self._snapshots.take(self.producers, self.log_end_offset, keep=self._segments.base_offsets)
        self._segments.active.write_indexes()
        return True

    def sync_prepared(self) -> None:
        """Sync the files written by `prepare_close`, and the log."""
        for file in self._segments.active.index_files():
            file.fsync()
        self.durability.flush()

    def close(self) -> None:
        """Sync the log and write a producer snapshot, so that the next start needs no recovery."""
        if self.prepare_close():
            self.sync_prepared()
        self.release()

    def abandon(self) -> None:
        """Fail waiting appends and close all files: the log is removed, or its folder failed."""
        self.durability.abandon()
        self.release()

    def note_moved(self, directory: str, roll_jitter_ms: int) -> None:
        """Use the new name of the folder, in the same parent. No file is opened, so this cannot fail."""
        self.directory = directory
        for segment in self._segments:
            segment.note_moved(directory)
        self._snapshots.note_moved(directory)
        self.leader_epochs.note_moved(directory)
        self._roll_jitter_ms = roll_jitter_ms
        # Records acknowledged as durable must be found under the new name after a power loss.
        self.durability.add_names_in(os.path.dirname(directory))

    def release(self) -> None:
        """Close all files; they are opened again on demand."""
        for segment in self._segments:
            segment.release()
