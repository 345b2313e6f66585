"""Syncs all logs and writes the checkpoints from which a start after a crash continues."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from headwater.logtier.log.flushing.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS, CheckpointWriter
from headwater.logtier.log.flushing.flush_sweep import FlushSweep
from headwater.logtier.log.folders.log_directory import LogDirectory
from headwater.logtier.log.folders.placed_logs import PlacedLogs
from headwater.logtier.log.log import Log
from headwater.logtier.log.segments.active_checkpoint import ActiveCheckpoint, write_active_checkpoint
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import CorruptRecordsError
from headwater.logtier.runtime.disk import Completion, Disk

_logger = logging.getLogger(__name__)

# A smaller tail of a log is checked quickly after a crash.
_ACTIVE_CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
# About a third of a second of checking after a crash; more unflushed data triggers a flush at once.
_UNFLUSHED_BYTES_MAX: Final = 1024 * 1024 * 1024
# Checkpoints waiting to be written are in memory, up to 5 MiB each; further ones wait for the next flush.
_WRITES_MAX: Final = 16


class LogFlusher:
    """Flushes the logs of a broker, at an interval or after much growth, and writes their checkpoints.

    All work runs outside the event loop, and a checkpoint is written only when its records are on the device. The log
    manager owns the flusher and the logs and folders it reads.
    """

    def __init__(
        self,
        disk: Disk,
        placed: PlacedLogs,
        directories: Sequence[LogDirectory],
    ) -> None:
        self._disk = disk
        self._placed = placed
        self._logs = placed.by_partition
        self._directories = directories
        self._checkpoints = CheckpointWriter(disk)
        self._sweep: FlushSweep | None = None
        self._writes: list[Completion] = []
        self._is_closed = False
        #: Growth of an active segment, in bytes, after which its checkpoint is written again.
        self.active_checkpoint_bytes = _ACTIVE_CHECKPOINT_BYTES

    def poll(self) -> None:
        """Process finished writes of checkpoints."""
        self._checkpoints.poll()

    def close(self) -> None:
        """Stop writing, and wait for running writes; the clean stop writes the last checkpoints."""
        self._is_closed = True
        self._checkpoints.wait()

    def flush_if_much_came(self) -> None:
        """Flush all logs if they grew by more than the limit since the last flush; does not access the disk."""
        if sum([log.unswept_bytes for log in self._logs.values()]) > _UNFLUSHED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Flush all logs, unless a flush is running; then write the checkpoints."""
        if not self._is_closed and (self._sweep is None or self._sweep.is_over):
            logs = list(self._logs.values())
            for log in logs:
                log.note_swept()
            self._sweep = FlushSweep(logs, self.checkpoint, self._active_checkpoint)
            self._sweep.run()

    def checkpoint(self) -> None:
        """Write the recovery points and log start offsets where they changed."""
        if self._is_closed:
            return
        recovery_points: dict[str, dict[TopicPartition, int]] = {each.path: {} for each in self._directories}
        start_offsets: dict[str, dict[TopicPartition, int]] = {each.path: {} for each in self._directories}
        for topic_partition, log in self._logs.items():
            path = self._placed.directory_of(topic_partition).path
            recovery_points[path][topic_partition] = log.durability.recovery_point
            if log.log_start_offset > 0:
                start_offsets[path][topic_partition] = log.log_start_offset
        for directory in self._directories:
            if directory.is_online:
                self._checkpoints.write(directory, RECOVERY_POINTS, recovery_points[directory.path])
                self._checkpoints.write(directory, LOG_START_OFFSETS, start_offsets[directory.path])

    def checkpoint_now(self) -> list[Completion]:
        """Write the checkpoints, and return the writes under way: a truncated log accepts no records before their end.

        Otherwise a crash would leave a recovery point above records that are not on the device.
        """
        self.checkpoint()
        return self._checkpoints.running

    def _active_checkpoint(self, log: Log) -> Callable[[], None] | None:
        """Return a callback that writes a checkpoint of the active segment, if the segment grew enough."""
        self._writes = [write for write in self._writes if not write.done()]
        is_gone = self._logs.get(log.topic_partition) is not log  # since the sweep began
        if is_gone or len(self._writes) >= _WRITES_MAX:
            return None
        try:
            found = log.active_checkpoint(self.active_checkpoint_bytes)
        except (OSError, CorruptRecordsError) as error:
            _logger.error("%s: its active segment cannot be read: %s", log.topic_partition, error)
            return None
        if found is None:
            return None
        forgotten = log.checkpoints_forgotten

        def write() -> None:
            if log.checkpoints_forgotten == forgotten and not self._is_closed:
                task = partial(_write_active_checkpoint, self._disk, log.directory, found)
                self._writes.append(self._disk.in_background(task))

        return write


def _write_active_checkpoint(disk: Disk, directory: str, checkpoint: ActiveCheckpoint) -> None:
    try:
        write_active_checkpoint(disk, directory, checkpoint)
    except OSError as error:
        # The previous checkpoint stays; the log may have been removed.
        _logger.warning(
            "%s: the active segment's checkpoint cannot be written, recovery will take longer: %s", directory, error
        )
