"""Stops the logs of a log folder so that the next start needs no recovery."""

import logging
from collections.abc import Sequence
from typing import Final

from headwater.logtier.log.flushing.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS, write_checkpoint
from headwater.logtier.log.folders.log_directory import LogDirectory
from headwater.logtier.log.log import Log
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.runtime.disk import Disk

logger = logging.getLogger(__name__)

# Up to this number, logs are synced one by one, without waiting for other writes to the same file system. More logs are
# synced with the whole file system: thousands of syncs take minutes, a single one a second.
_SYNCED_ONE_BY_ONE_MAX: Final = 16


def stop_cleanly(disk: Disk, directory: LogDirectory, logs: Sequence[Log], broker_epoch: int = -1) -> None:
    """Sync all logs of a folder, then write its checkpoints and the clean-stop marker.

    If a log cannot be synced, there is no marker, and the next start checks the folder. Errors are logged, not raised.
    """
    unsynced, failed = _write(logs)
    try:
        if not _sync(directory, unsynced) or failed:
            return
        for log in logs:
            log.release()
        ends = {log.topic_partition: log.log_end_offset for log in logs}
        starts = {log.topic_partition: log.log_start_offset for log in logs if log.log_start_offset > 0}
        write_checkpoint(disk, directory.path, RECOVERY_POINTS, ends)
        write_checkpoint(disk, directory.path, LOG_START_OFFSETS, starts)
        directory.mark_stopped_cleanly(broker_epoch)
    except OSError as error:
        logger.error("log folder %s is not stopped cleanly: %s", directory.path, error)


def _write(logs: Sequence[Log]) -> tuple[list[Log], bool]:
    """Write data held in memory; return the logs that need a sync, and whether one failed."""
    unsynced: list[Log] = []
    failed = False
    for log in logs:
        try:
            if log.prepare_close():
                unsynced.append(log)
        except (OSError, ValueError, KafkaError) as error:
            logger.error("%s: cannot be closed: %s", log.topic_partition, error)
            failed = True
    return unsynced, failed


def _sync(directory: LogDirectory, logs: Sequence[Log]) -> bool:
    if len(logs) > _SYNCED_ONE_BY_ONE_MAX and directory.volume is not None and directory.volume.sync():
        for log in logs:
            log.durability.note_synced()
        return True
    is_synced = True
    for log in logs:
        try:
            log.sync_prepared()
        except (OSError, KafkaError) as error:
            logger.error("%s: cannot be synced: %s", log.topic_partition, error)
            is_synced = False
    return is_synced
