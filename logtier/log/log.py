"""The log of one partition: segments, producers, leader epochs."""

import logging
import os
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from headwater.logtier.config import TopicConfig
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
from headwater.logtier.log.loaded_log import LoadedLog
from headwater.logtier.log.partition_metadata import write_partition_metadata
from headwater.logtier.log.producers.producer_snapshot_codec import encode_snapshot
from headwater.logtier.log.producers.producer_state import ProducerStates, Verification
from headwater.logtier.log.reading import LogReader, LogSlice, TimestampOffset, segment_ages
from headwater.logtier.log.retention import roll_interval_ms, segments_to_delete
from headwater.logtier.log.segments.active_checkpoint import (
    ActiveCheckpoint,
    read_checkpointed_base,
    remove_active_checkpoint,
)
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

#: Makes a named tuple without the function that takes its fields by name: every batch needs one.
_new: Final = tuple.__new__


class Log(LogReader):
    """An append-only sequence of record batches in one folder.

    Invariants: offsets of batches strictly increase; every byte below `log_end_offset` is a whole batch whose checksum
    was verified; what is on the device, `durability` knows. Calls are synchronous and go to the page cache.
    Knows neither leaders nor networks: replication and coordinators call it. Made by `opening.open_log`.
    Nobody else sets its attributes.

    Files: per segment `.log`, `.index`, `.timeindex` and `.snapshot` (see `segment`, `producer_state`),
    `leader-epoch-checkpoint`, `partition.metadata`; a deleted segment's files end in `.deleted` for a while.
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
        """`post` has syncs noticed when they end; without it `durability.poll` has to be called."""
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
            post=post,
        )
        self._deleted = DeletedSegments(disk)
        self._swept_bytes = 0  # see `note_swept`
        # Bytes in the segments that were active since the log was opened, but for the one that is; without what was
        # there then and need not be checked again.
        self._rolled_bytes = -segments.active.size if loaded.is_on_device else 0
        # What the log had grown by when a checkpoint was last made, and the active segment then.
        self._checkpointed_bytes = 0
        self._checkpointed_base = -1
        #: How often what a checkpoint said became wrong.
        self.checkpoints_forgotten = 0
        #: Who works on older segments, so that others leave them alone.
        self.leases = SegmentLeases()
        self.configure(config)

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def config(self) -> TopicConfig:
        """The topic's configs."""
        return self._config

    def configure(self, config: TopicConfig) -> None:
        """Take over the topic's configs; may be called at any time."""
        self._config = config
        # What every append needs, one attribute away.
        self._log_append_time = config.message_timestamp_type == "LogAppendTime"
        self._recompresses = config.compression_type != PRODUCER
        self._offset_entries_max = config.segment_index_bytes // OFFSET_ENTRY.size
        # The last one is for the segment's greatest timestamp, when it ends.
        self._time_entries_max = config.segment_index_bytes // TIME_ENTRY.size - 1
        self._roll_ms = roll_interval_ms(config)
        active = self._segments.active
        active.index_interval_bytes = config.index_interval_bytes
        active.index_room = 0  # to be counted anew

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
        """Append the one batch that a produce request has for a partition, and give it its offsets.

        It gets them in `records` itself, where that may be written to; no reference to it is kept.

        A batch of a transaction that is not open here needs the `verification` that was begun for it. A coordinator's
        own batches have no sequence numbers.

        Raises KafkaError: corrupt_message, invalid_record, message_too_large, record_list_too_large, invalid_timestamp,
        out_of_order_sequence_number, invalid_producer_epoch, invalid_txn_state,
        kafka_storage_error. Nothing is appended then. A duplicate of one of the producer's last five batches returns
        that batch's offsets.
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
        if producer_id >= 0:
            if is_transactional:
                original = self.producers.check_transactional(producer_id, epoch, sequence, last_delta, verification)
            else:
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
                    self.durability.round_of(original.last_offset),
                )
        first_offset = self.log_end_offset
        last_offset = first_offset + last_delta
        if self._log_append_time:
            max_ms = now_ms
            head = stamp_append_time(view, fields, first_offset, leader_epoch, now_ms)
            buffers: list[Buffer] = [head, view[HEADER_BYTES:]]
        elif view.readonly:
            buffers = [PREFIX.pack(first_offset, length, leader_epoch), view[PREFIX_BYTES:]]
        else:
            # Nobody reads a request after it is answered: one buffer leaves faster than two.
            PREFIX.pack_into(view, 0, first_offset, length, leader_epoch)
            buffers = [view]
        if leader_epoch > self.leader_epochs.latest:
            self._begin_epoch(leader_epoch, first_offset)
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
        """Append the marker that ends a producer's transaction here; a repetition of the last one appends nothing.

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
            self._begin_epoch(leader_epoch, offset)
        try:
            len(self._segments.active.transaction_index)  # What may fail comes before the marker is there.
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
        """Append batches that a leader gave their offsets, unchanged; a cut last batch (fetches have it) is left out.

        Raises KafkaError: corrupt_message, invalid_record (offsets not above the log's end), kafka_storage_error.
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
            self._begin_epoch(header.partition_leader_epoch, header.base_offset)
            self._write([batch], len(batch), header.last_offset, header.max_timestamp_ms, header.max_timestamp_ms)
            self._note_aborted(
                self.producers.replay(header, decode_end_transaction_marker(batch) if header.is_control else None)
            )
            count += header.record_count
            size += len(batch)
        return AppendInfo(
            self.log_end_offset if first_offset is None else first_offset,
            self.log_end_offset - 1,
            NO_TIMESTAMP,
            self.log_start_offset,
            count,
            size,
            False,
        )

    def _begin_epoch(self, leader_epoch: int, offset: int) -> None:
        """Before the epoch's first batch is written: a failure must leave nothing appended."""
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
        """By the time between the segment's first batch and the new one; by the clock where batches have no time."""
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
        """Begin a new segment at the log's end; the old one is synced in the background. An empty one is kept."""
        old = self._segments.active
        if old.size == 0 and old.base_offset == self.log_end_offset:
            return old
        try:
            old.write_indexes()
            self._snapshots.take(self.producers, self.log_end_offset, keep=self._segments.base_offsets)
            new = LogSegment.create(
                self._disk,
                self.directory,
                self.log_end_offset,
                now_ms=now_ms,
                index_interval_bytes=self._config.index_interval_bytes,
            )
        except OSError as error:
            raise self._storage_error("begin a segment in", error) from error
        old.seal()
        old.release()
        self._rolled_bytes += old.size
        self._segments.append(new)
        self.durability.add_names_in(self.directory)
        self.durability.request()
        return new

    def maybe_roll(self, now_ms: int) -> bool:
        """Roll the active segment if it is older than segment.ms though nothing is appended; tell whether it rolled.

        Both by its first record's time and by the clock since it was begun.
        """
        segment = self._segments.active
        # A segment of old records is no old segment: a replay would else begin one at every look.
        is_old = now_ms - segment.created_ms > self._roll_ms - self._roll_jitter_ms
        if segment.size and is_old and self._is_time_to_roll(segment, segment.first_timestamp_ms, now_ms, now_ms):
            self.roll(now_ms)
            return True
        return False

    # -- taking over

    def take_topic_id(self, topic_id: UUID) -> None:
        """Note whose log it is, in its folder too, where that was not known. Raises OSError."""
        write_partition_metadata(self._disk, self.directory, topic_id)
        self.topic_id = topic_id

    def take_producers(self, producers: ProducerStates) -> None:
        """Take over what another log of the same records knows of producers, also of those whose batches are gone."""
        self.producers = producers

    # -- transactions

    def last_stable_offset(self, high_watermark: int) -> int:
        """Where a read_committed reader stops: no record from there on is of a transaction that has ended for all."""
        stable = self.producers.last_stable_offset(high_watermark)
        return max(stable, self.log_start_offset)

    # -- deleting

    def delete_old_segments(self, now_ms: int, *, high_watermark: int | None = None) -> int:
        """Delete segments by retention time and size and before the log's start; return how many went.

        The active segment rolls first when it has expired as well.
        """
        count = segments_to_delete(
            segment_ages(self._segments, self.log_end_offset),
            total_bytes=self.size_bytes if self._config.retention_bytes >= 0 else 0,
            config=self._config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=self.log_end_offset if high_watermark is None else high_watermark,
        )
        if count == 0 or self.leases.are_out_for(SegmentUse.CLEANING):
            return 0
        if count == len(self._segments):
            try:
                self.roll(now_ms)
            except KafkaError:
                # A full disk, perhaps: then the others go first, and make room.
                count -= 1
                if count == 0:
                    raise
        self._let_go(self._segments.remove_oldest(count), now_ms)
        self._move_start_to(self._segments[0].base_offset)
        return count

    def replace_segments(self, old: Sequence[LogSegment], new: LogSegment, now_ms: int) -> None:
        """Put a cleaned segment in the place of neighbours, none of them the active one (see `segment_swap`)."""
        new.seal()
        self._segments.replace(old, new)
        self._let_go(old, now_ms)

    def _let_go(self, segments: Sequence[LogSegment], now_ms: int) -> None:
        """The files of segments that left the log go after file.delete.delay.ms, for the sake of reads under way."""
        for segment in segments:
            self._deleted.add(segment, now_ms + self._config.file_delete_delay_ms)

    def remove_deleted_files(self, now_ms: int) -> None:
        """Remove the files of segments whose delay is over."""
        self._deleted.remove_due(now_ms)

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
        self._snapshots.remove_before(self._segments[0].base_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop everything from the batch that holds `offset` on: a follower's leader has less, or other, records."""
        if offset >= self.log_end_offset:
            return
        offset = max(offset, self.log_start_offset)
        now_ms = self._segments.active.modified_ms
        active, *later = self._segments.from_offset(offset)
        for segment in later:
            segment.mark_deleted()
            segment.remove_deleted()
        self._segments.remove_after(active)
        active.index_interval_bytes = self._config.index_interval_bytes
        active.modified_ms = now_ms
        # The log's start may lie inside of the batch that goes.
        self.log_end_offset = max(self.log_start_offset, active.truncate_to(offset))
        self.durability.truncate_to(self.log_end_offset)
        self._rolled_bytes = self._checkpointed_bytes = self._swept_bytes = 0
        self.forget_checkpoint()
        self.leader_epochs.truncate_from_end(self.log_end_offset)
        self.producers = self._snapshots.restore(self._segments, self.log_end_offset)

    # -- durability

    def flush(self) -> None:
        """Wait until every record is on the device."""
        if not self.durability.is_complete:
            self.durability.flush()

    @property
    def grown_bytes(self) -> int:
        """What came since the log was opened, or truncated, with what its last segment had then after a crash."""
        return self._rolled_bytes + self._segments.active.size

    @property
    def unswept_bytes(self) -> int:
        """What came since all logs were last flushed."""
        return self._rolled_bytes + self._segments.active.size - self._swept_bytes

    def note_swept(self) -> None:
        """All logs are flushed now."""
        self._swept_bytes = self.grown_bytes

    def active_checkpoint(self, grown_bytes: int) -> ActiveCheckpoint | None:
        """Return what is known of the last segment, if so much came since it was last returned.

        It may be written when everything up to it is on the device, unless checkpoints were forgotten meanwhile.
        """
        segment = self._segments.active
        unknown_bytes = self.grown_bytes - self._checkpointed_bytes
        if unknown_bytes and self._checkpointed_base < 0:
            # It is written to again: what it had when the log was opened may never have been written down.
            unknown_bytes = max(unknown_bytes, segment.size)
        if unknown_bytes < grown_bytes or not segment.size:
            return None
        self._checkpointed_bytes = self.grown_bytes
        self._checkpointed_base = segment.base_offset
        return ActiveCheckpoint(
            self.topic_id,
            segment.state(self.log_end_offset),
            encode_snapshot(self.producers),
            tuple(self.leader_epochs.entries()),
        )

    def forget_checkpoint(self, among: Collection[int] | None = None) -> None:
        """What was written of the segment, or is about to be, holds no longer; `among`: base offsets that it may have.

        Raises OSError.
        """
        if (
            among is None
            or self._checkpointed_base in among
            or read_checkpointed_base(self._disk, self.directory) in among
        ):
            self.checkpoints_forgotten += 1
            self._checkpointed_base = -1
            remove_active_checkpoint(self._disk, self.directory)
            # Once more, after one that may be on its way to the disk.
            self._disk.in_background(partial(remove_active_checkpoint, self._disk, self.directory))
            self.durability.add_names_in(self.directory)

    def prepare_close(self) -> bool:
        """Write what the next start needs to begin at once; tell whether there is something to be synced."""
        is_noted = self._snapshots.latest == self.log_end_offset or not self.log_end_offset
        if is_noted and self.durability.is_complete:
            return False
        if not is_noted:
            self._snapshots.take(self.producers, self.log_end_offset, keep=self._segments.base_offsets)
        self._segments.active.write_indexes()
        return True

    def sync_prepared(self) -> None:
        """Bring what `prepare_close` wrote, and everything else, to the device."""
        for file in self._segments.active.index_files():
            file.fsync()
        self.durability.flush()

    def close(self) -> None:
        """Bring everything to the device, with a producer snapshot, so that the next start needs no recovery."""
        if self.prepare_close():
            self.sync_prepared()
        self.release()

    def abandon(self) -> None:
        """The log goes away, or its folder failed: whoever waits for a sync is told, and all files are let go."""
        self.durability.abandon()
        self.release()

    def note_moved(self, directory: str, roll_jitter_ms: int) -> None:
        """The folder has another name now, in the same parent. Nothing is opened: this cannot fail."""
        self.directory = directory
        for segment in self._segments:
            segment.note_moved(directory)
        self._snapshots.note_moved(directory)
        self.leader_epochs.note_moved(directory)
        self._roll_jitter_ms = roll_jitter_ms
        # A record that is acknowledged from the device must be found under this name after a power loss.
        self.durability.add_names_in(os.path.dirname(directory))

    def release(self) -> None:
        """Let go of all files."""
        for segment in self._segments:
            segment.release()
