"""The high watermarks of replicated partitions on disk."""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from headwater.logtier.log.flushing.checkpoints import CheckpointWriter, read_checkpoint_or_warn
from headwater.logtier.log.folders.log_directory import LogDirectory
from headwater.logtier.log.log import Log
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from headwater.logtier.runtime.disk import Completion

logger = logging.getLogger(__name__)

HIGH_WATERMARKS: Final = "replication-offset-checkpoint"


class WatermarkCheckpoints:
    """Writes and reads the high watermarks of the partitions with several replicas.

    File per log folder: `replication-offset-checkpoint`, in Kafka's format. A watermark that is too low is safe, one
    above the truth is not: an entry is at most the watermark at the time of the write, and a missing or damaged file
    counts as 0. A partition with one replica has no entry, since its watermark is its log end.
    """

    def __init__(self, log_manager: LogManager) -> None:
        self._log_manager = log_manager
        self._writer = CheckpointWriter(log_manager.disk)
        self._found: dict[TopicPartition, int] = {}
        #: Folders that have a file; a node without replicated partitions needs none.
        self._has_file: set[str] = set()

    def read(self) -> None:
        """Read the files of all online folders, and remove what they have of logs that are gone.

        Call it when those logs are deleted and before others are made: a log made anew must not begin with an old
        watermark, neither now nor after the next start.
        """
        logs = self._log_manager.logs
        for directory in self._online():
            offsets = read_checkpoint_or_warn(
                self._log_manager.disk,
                directory,
                HIGH_WATERMARKS,
                "the high watermarks in this folder begin at the log start offsets",
            )
            if offsets:
                self._has_file.add(directory.path)
            present = {
                key: offset
                for key, offset in offsets.items()
                # The entry of a log in another folder, from before a move, is out of date.
                if key in logs and self._log_manager.directory_of(key) is directory
            }
            if len(present) < len(offsets):
                self._writer.write(directory, HIGH_WATERMARKS, present)
            self._found.update(present)
        self._writer.wait()

    def take(self, topic_partition: TopicPartition) -> int:
        """Return the watermark read for a partition, 0 without one; later calls return 0, as the log may be new."""
        return self._found.pop(topic_partition, 0)

    def write(self, partitions: Iterable[Partition[Log]]) -> None:
        """Write the watermarks of replicated partitions in the background, where they changed."""
        offsets = self._by_folder(partitions)
        for directory in self._online():
            if offsets[directory.path] or directory.path in self._has_file:
                self._has_file.add(directory.path)
                self._writer.write(directory, HIGH_WATERMARKS, offsets[directory.path])

    @property
    def running(self) -> list[Completion]:
        """The writes under way."""
        return self._writer.running

    def remove(self, partitions: Iterable[Partition[Log]]) -> None:
        """Write at once, without partitions that are gone: a log made anew must not begin with an old watermark."""
        if self._has_file:
            self._writer.wait()
            self.close(partitions)

    def close(self, partitions: Iterable[Partition[Log]]) -> None:
        """Write the watermarks for the next start, and wait for them; an error is logged."""
        self.write(partitions)
        self._writer.wait()

    def _online(self) -> Sequence[LogDirectory]:
        return [directory for directory in self._log_manager.directories if directory.is_online]

    def _by_folder(self, partitions: Iterable[Partition[Log]]) -> dict[str, dict[TopicPartition, int]]:
        offsets: dict[str, dict[TopicPartition, int]] = {each.path: {} for each in self._log_manager.directories}
        for partition in partitions:
            key = partition.topic_partition
            offsets[self._log_manager.directory_of(key).path][key] = partition.high_watermark
        return offsets
