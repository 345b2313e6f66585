"""Opening the log in a folder: at once after a clean stop, by checking what was not synced after a crash."""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from logtier.config import TopicConfig
from logtier.log.leader_epochs import LeaderEpochs
from logtier.log.log import Log
from logtier.log.producer_snapshots import ProducerSnapshots
from logtier.log.producer_state import ProducerStates
from logtier.log.segment import DELETED_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, LogSegment
from logtier.protocol.topic_partition import TopicPartition
from logtier.runtime.disk import Disk

_logger = logging.getLogger(__name__)

_DIGITS: Final = 20
_TEMPORARY_SUFFIX: Final = ".tmp"


def open_log(
    disk: Disk,
    directory: str,
    topic_partition: TopicPartition,
    topic_id: UUID,
    config: TopicConfig,
    *,
    was_stopped_cleanly: bool,
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
    roll_jitter_ms: int = 0,
) -> Log:
    """Open, or begin, the log in `directory`, which exists.

    After a clean stop only the end of the last segment is read. Otherwise every segment from the one that holds the
    recovery point on is checked batch by batch, cut off at the first that is torn or damaged, and its indexes, the
    producers' state and the leader epochs are built anew in the same pass. Nothing before the damage is lost.
    """
    segments, snapshots = _list_files(disk, directory, config, now_ms)
    leader_epochs = LeaderEpochs(disk, directory)
    leader_epochs.load()
    must_sync = False
    if not segments:
        segments = [_begin(disk, directory, log_start_offset, config, now_ms)]
        log_end_offset = log_start_offset
        producers = ProducerStates()
        snapshots.remove_after(-1)
    else:
        clean_end = _end_after_clean_stop(segments[-1]) if was_stopped_cleanly else None
        if clean_end is None:
            size = sum(segment.size for segment in segments)
            log_end_offset, producers = _recover(segments, snapshots, leader_epochs, recovery_point)
            # Without either, files and indexes are on the device as they are.
            must_sync = recovery_point < log_end_offset or sum(segment.size for segment in segments) != size
        else:
            log_end_offset = clean_end
            producers = snapshots.restore(segments, clean_end)
            recovery_point = clean_end
        log_start_offset = max(log_start_offset, segments[0].base_offset)
        if log_end_offset < log_start_offset:
            # All that is left was deleted by DeleteRecords already: the log begins again, empty, where it was said to.
            for segment in segments:
                segment.mark_deleted()
                segment.remove_deleted()
            segments = [_begin(disk, directory, log_start_offset, config, now_ms)]
            log_end_offset = log_start_offset
    leader_epochs.truncate_from_end(log_end_offset)
    log = Log(
        disk=disk,
        directory=directory,
        topic_partition=topic_partition,
        topic_id=topic_id,
        config=config,
        segments=segments,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        recovery_point=min(recovery_point, log_end_offset),
        producers=producers,
        snapshots=snapshots,
        leader_epochs=leader_epochs,
        roll_jitter_ms=roll_jitter_ms,
    )
    if must_sync:
        log.sync_in_background()
    log.release()
    return log


def _begin(disk: Disk, directory: str, offset: int, config: TopicConfig, now_ms: int) -> LogSegment:
    return LogSegment.create(disk, directory, offset, now_ms=now_ms, index_interval_bytes=config.index_interval_bytes)


def _list_files(
    disk: Disk, directory: str, config: TopicConfig, now_ms: int
) -> tuple[list[LogSegment], ProducerSnapshots]:
    """Find the segments and snapshots; remove what a deletion or an unfinished write left behind."""
    segments: list[LogSegment] = []
    snapshot_offsets: list[int] = []
    for entry in disk.listdir(directory):
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
                    index_interval_bytes=config.index_interval_bytes,
                )
            )
        elif suffix == SNAPSHOT_SUFFIX:
            snapshot_offsets.append(int(stem))
    segments.sort(key=lambda segment: segment.base_offset)
    return segments, ProducerSnapshots(disk, directory, snapshot_offsets)


def _end_after_clean_stop(active: LogSegment) -> int | None:
    """Return the log's end offset; None if the files are not as a clean stop leaves them."""
    try:
        return active.next_offset_after_clean_stop()
    except ValueError as error:
        _logger.warning("%s; the log is checked as after a crash", error)
        return None


def _recover(
    segments: list[LogSegment], snapshots: ProducerSnapshots, leader_epochs: LeaderEpochs, recovery_point: int
) -> tuple[int, ProducerStates]:
    """Check the segments from the recovery point on; return the log's end offset and the producers' state there."""
    first = max(0, bisect_right([segment.base_offset for segment in segments], recovery_point) - 1)
    next_offset = segments[first].base_offset
    producers = snapshots.restore(segments[:first], next_offset) if first else snapshots.load(next_offset)[0]
    snapshots.remove_after(next_offset)
    scanned_from = next_offset
    epochs: list[tuple[int, int]] = []
    for i in range(first, len(segments)):
        segment = segments[i]
        if segment.base_offset < next_offset:
            _drop(segments[i:], f"{segment.log_path} begins before offset {next_offset}, where the one before it ends")
            del segments[i:]
            break
        next_offset = segment.base_offset
        size = segment.size
        for found in segment.recover():
            producers.replay(found.header)
            if not epochs or found.header.partition_leader_epoch != epochs[-1][0]:
                epochs.append((found.header.partition_leader_epoch, found.header.base_offset))
            next_offset = found.header.last_offset + 1
        if segment.size != size:
            _logger.warning(
                "%s: %d bytes after offset %d were not whole batches and were cut off",
                segment.log_path,
                size - segment.size,
                next_offset,
            )
            _drop(segments[i + 1 :], f"{segment.log_path} was damaged before its end")
            del segments[i + 1 :]
            break
        # Only the active segment is likely to be read soon.
        if i + 1 < len(segments):
            segment.release()
    leader_epochs.restore(scanned_from, epochs)
    return next_offset, producers


def _drop(segments: Sequence[LogSegment], why: str) -> None:
    for segment in segments:
        _logger.warning("%s is removed: %s", segment.log_path, why)
        segment.mark_deleted()
        segment.remove_deleted()
