"""Loads a log from the files in its folder: directly after a clean stop, with checks of unsynced data after a crash."""

import logging
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from headwater.logtier.log.leader_epochs import LeaderEpochs
from headwater.logtier.log.loaded_log import LoadedLog
from headwater.logtier.log.producers.producer_snapshot_codec import SnapshotError, decode_snapshot
from headwater.logtier.log.producers.producer_snapshots import ProducerSnapshots
from headwater.logtier.log.producers.producer_state import ProducerStates
from headwater.logtier.log.segment_swap import finish_swaps
from headwater.logtier.log.segments.active_checkpoint import ActiveCheckpoint, read_active_checkpoint
from headwater.logtier.log.segments.index_files import TRANSACTION_INDEX_SUFFIX
from headwater.logtier.log.segments.segment import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    LogSegment,
)
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import CorruptRecordsError, decode_end_transaction_marker
from headwater.logtier.runtime.disk import Disk

_logger = logging.getLogger(__name__)

_DIGITS: Final = 20
_TEMPORARY_SUFFIX: Final = ".tmp"


class _Start(NamedTuple):
    """Start of the check after a crash, with the state of the log up to there."""

    #: Index of the first segment that is checked.
    first: int
    #: Position in its file, and the offset at that position.
    position: int
    offset: int
    producers: ProducerStates
    #: Leader epochs up to there; they replace the entries of the file from `epochs_from` on.
    epochs: tuple[tuple[int, int], ...]
    epochs_from: int
    recovery_point: int


class _Scan(NamedTuple):
    """Result of the check."""

    #: End offsets of the checked segments, at least one.
    ends: tuple[int, ...]
    producers: ProducerStates
    #: Leader epochs that begin in the checked segments.
    epochs: tuple[tuple[int, int], ...]
    #: Reason for the removal of the segments not reached, if any.
    why_rest_goes: str


class _Recovered(NamedTuple):
    """The log after the check."""

    segments: Sequence[LogSegment]
    log_end_offset: int
    producers: ProducerStates
    recovery_point: int


def load_log(
    disk: Disk,
    directory: str,
    topic_partition: TopicPartition,
    topic_id: UUID,
    *,
    was_stopped_cleanly: bool,
    recovery_point: int,
    log_start_offset: int,
    index_interval_bytes: int,
    now_ms: int,
) -> LoadedLog:
    """Load the log from the files in `directory`; create an empty log if there are none.

    After a clean stop only the end of the last segment is read. Otherwise every segment from the recovery point on is
    checked batch by batch and truncated at the first torn or damaged batch; its indexes, the producer states and the
    leader epochs are rebuilt in the same pass. Every batch before the damage is kept. If the file of leader epochs is
    not whole, the headers of all batches are read.
    """
    segments: Sequence[LogSegment]
    segments, snapshots, indexed = _list_files(disk, directory, index_interval_bytes, now_ms)
    leader_epochs = LeaderEpochs(disk, directory)
    has_epochs = leader_epochs.load()
    is_on_device = False
    if not segments:
        segments = [_begin(disk, directory, log_start_offset, index_interval_bytes, now_ms)]
        log_end_offset = log_start_offset
        producers = ProducerStates()
        snapshots.remove_after(-1)
    else:
        clean_end = _end_after_clean_stop(segments[-1]) if was_stopped_cleanly else None
        if clean_end is None:
            resumed = read_active_checkpoint(disk, directory)
            if resumed is not None and resumed.topic_id != topic_id:
                resumed = None
            segments, log_end_offset, producers, recovery_point = _recover(
                segments, snapshots, leader_epochs, recovery_point, resumed
            )
        else:
            log_end_offset = clean_end
            producers = snapshots.restore(segments, clean_end)
            recovery_point = clean_end
            is_on_device = has_epochs
        if not has_epochs:
            leader_epochs.restore(0, _epochs_of(segments))
        _check_transaction_indexes(segments, snapshots, indexed)
        log_start_offset = max(log_start_offset, segments[0].base_offset)
        if log_end_offset < log_start_offset:
            # All remaining records were deleted by DeleteRecords: the log restarts empty at its start offset.
            for segment in segments:
                segment.mark_deleted()
                segment.remove_deleted()
            segments = [_begin(disk, directory, log_start_offset, index_interval_bytes, now_ms)]
            log_end_offset = log_start_offset
    leader_epochs.truncate_from_end(log_end_offset)
    leader_epochs.truncate_from_start(log_start_offset)
    return LoadedLog(
        directory=directory,
        topic_partition=topic_partition,
        topic_id=topic_id,
        segments=tuple(segments),
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        recovery_point=min(recovery_point, log_end_offset),
        producers=producers,
        snapshots=snapshots,
        leader_epochs=leader_epochs,
        is_on_device=is_on_device,
    )


def _epochs_of(segments: Sequence[LogSegment]) -> Iterator[tuple[int, int]]:
    """Yield the leader epoch and the base offset of each batch."""
    for segment in segments:
        for found in segment.headers():
            yield found.header.partition_leader_epoch, found.header.base_offset


def _begin(disk: Disk, directory: str, offset: int, index_interval_bytes: int, now_ms: int) -> LogSegment:
    return LogSegment.create(disk, directory, offset, now_ms=now_ms, index_interval_bytes=index_interval_bytes)


def _list_files(
    disk: Disk, directory: str, index_interval_bytes: int, now_ms: int
) -> tuple[list[LogSegment], ProducerSnapshots, set[int]]:
    """List segments, snapshots and the segments with aborted transactions; remove left-over files.

    Left-over files come from deletions and unfinished writes.
    """
    entries = disk.listdir(directory)
    if finish_swaps(disk, directory, entries, index_interval_bytes=index_interval_bytes):
        entries = disk.listdir(directory)
    segments: list[LogSegment] = []
    snapshot_offsets: list[int] = []
    indexed: set[int] = set()
    for entry in entries:
        stem, suffix = entry.name[:_DIGITS], entry.name[_DIGITS:]
        if entry.name.endswith((DELETED_SUFFIX, _TEMPORARY_SUFFIX)):
            disk.remove(f"{directory}/{entry.name}")
        elif not (len(stem) == _DIGITS and stem.isascii() and stem.isdigit()):
            continue
        elif suffix == LOG_SUFFIX:
            segments.append(
                LogSegment(
                    disk,
                    directory,
                    int(stem),
                    size=entry.size_bytes,
                    modified_ms=min(entry.modified_ms, now_ms),
                    index_interval_bytes=index_interval_bytes,
                )
            )
        elif suffix == SNAPSHOT_SUFFIX:
            snapshot_offsets.append(int(stem))
        elif suffix == TRANSACTION_INDEX_SUFFIX:
            indexed.add(int(stem))
    segments.sort(key=lambda segment: segment.base_offset)
    return segments, ProducerSnapshots(disk, directory, snapshot_offsets), indexed


def _check_transaction_indexes(
    segments: Sequence[LogSegment], snapshots: ProducerSnapshots, indexed: Collection[int]
) -> None:
    """Rebuild damaged indexes of aborted transactions: without them aborted records would be read."""
    for i, segment in enumerate(segments):
        if segment.base_offset not in indexed:
            continue
        try:
            len(segment.transaction_index)
        except CorruptRecordsError as error:
            _logger.warning("%s; the index is rebuilt", error)
            producers = snapshots.replay(segments[:i], segment.base_offset)
            index = segment.begin_transaction_index()
            for found in segment.headers():
                aborted = producers.replay(found.header, segment.marker_of(found) if found.header.is_control else None)
                if aborted is not None:
                    index.append(aborted)
            segment.write_indexes()


def _end_after_clean_stop(active: LogSegment) -> int | None:
    """Return the log end offset; None if the files contradict a clean stop."""
    try:
        return active.next_offset_after_clean_stop()
    except ValueError as error:
        _logger.warning("%s; the log is checked as after a crash", error)
        return None


def _recover(
    segments: Sequence[LogSegment],
    snapshots: ProducerSnapshots,
    leader_epochs: LeaderEpochs,
    recovery_point: int,
    resumed: ActiveCheckpoint | None,
) -> _Recovered:
    """Check the segments from the recovery point on, or from a later checkpoint (`resumed`)."""
    start = _choose_start(segments, snapshots, recovery_point, resumed)
    scan = _scan(segments, start)
    kept, log_end_offset = _drop_tail(segments, start, scan)
    leader_epochs.restore(start.epochs_from, (*start.epochs, *scan.epochs))
    return _Recovered(kept, log_end_offset, scan.producers, start.recovery_point)


def _choose_start(
    segments: Sequence[LogSegment],
    snapshots: ProducerSnapshots,
    recovery_point: int,
    resumed: ActiveCheckpoint | None,
) -> _Start:
    """Choose the start: the beginning of the segment with the recovery point, or the position of a later checkpoint."""
    base_offsets = [segment.base_offset for segment in segments]
    first = max(0, bisect_right(base_offsets, recovery_point) - 1)
    if resumed is not None and resumed.segment.base_offset in base_offsets[first:]:
        known = resumed.segment
        in_segment = base_offsets.index(known.base_offset)
        producers = _resume(segments[in_segment], resumed)
        if producers is not None:
            snapshots.remove_after(known.base_offset)
            return _Start(
                in_segment,
                known.position,
                known.end_offset,
                producers,
                resumed.epochs,
                0,
                max(recovery_point, known.end_offset - 1),
            )
    base_offset = base_offsets[first]
    producers = snapshots.restore(segments[:first], base_offset) if first else snapshots.load(base_offset)[0]
    snapshots.remove_after(base_offset)
    return _Start(first, 0, base_offset, producers, (), base_offset, recovery_point)


def _scan(segments: Sequence[LogSegment], start: _Start) -> _Scan:
    """Check batches up to the first torn or damaged one, and rebuild the state of the checked segments."""
    producers = start.producers
    epochs: list[tuple[int, int]] = []
    ends: list[int] = []
    end_offset = start.offset
    for i in range(start.first, len(segments)):
        segment = segments[i]
        if i > start.first:
            if segment.base_offset < end_offset:
                why = f"{segment.log_path} begins before offset {end_offset}, the end of the previous segment"
                return _Scan(tuple(ends), producers, tuple(epochs), why)
            end_offset = segment.base_offset
        size = segment.size
        for found, batch in segment.recover(start.position if i == start.first else 0):
            aborted = producers.replay(
                found.header, decode_end_transaction_marker(batch) if found.header.is_control else None
            )
            if aborted is not None:
                segment.transaction_index.append(aborted)
            if not epochs or found.header.partition_leader_epoch != epochs[-1][0]:
                epochs.append((found.header.partition_leader_epoch, found.header.base_offset))
            end_offset = found.header.last_offset + 1
        ends.append(end_offset)
        if segment.size != size:
            _logger.warning(
                "%s: %d bytes after offset %d were not whole batches and were cut off",
                segment.log_path,
                size - segment.size,
                end_offset,
            )
            return _Scan(tuple(ends), producers, tuple(epochs), f"{segment.log_path} was damaged before its end")
        # Only the active segment is likely to be read soon.
        if i + 1 < len(segments):
            segment.write_indexes()
            segment.release()
    return _Scan(tuple(ends), producers, tuple(epochs), "")


def _drop_tail(segments: Sequence[LogSegment], start: _Start, scan: _Scan) -> tuple[Sequence[LogSegment], int]:
    """Remove the segments after the end of the log; return the remaining ones and the log end offset."""
    ends = scan.ends
    kept = segments[: start.first + len(ends)]
    _drop(segments[len(kept) :], scan.why_rest_goes)
    while len(ends) > 1 and not kept[-1].size and start.recovery_point <= ends[-2] < kept[-1].base_offset:
        # The end of the previous segment was not on the device and was lost at a batch boundary. With the empty segment
        # kept, consumers could not read up to the log end offset.
        _drop(kept[-1:], f"it is empty, and {kept[-2].log_path} ends at offset {ends[-2]}")
        kept, ends = kept[:-1], ends[:-1]
    return kept, ends[-1]


def _resume(segment: LogSegment, known: ActiveCheckpoint) -> ProducerStates | None:
    """Apply a checkpoint to its segment; return the producer states, or None if the whole segment must be checked."""
    try:
        producers = decode_snapshot(known.producers)
    except SnapshotError as error:
        _logger.warning("%s: %s; the segment is checked from its beginning", segment.log_path, error)
        return None
    return producers if segment.resume(known.segment) else None


def _drop(segments: Sequence[LogSegment], why: str) -> None:
    for segment in segments:
        _logger.warning("%s is removed: %s", segment.log_path, why)
        segment.mark_deleted()
        segment.remove_deleted()
