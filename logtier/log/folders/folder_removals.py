"""Folders of deleted logs: what they are called, and when they are removed."""

import logging
import os
import random
from collections.abc import Sequence
from functools import partial

from headwater.logtier.log.folders.log_folders import deleted_folder_name
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.disk import Disk

_logger = logging.getLogger(__name__)


class FolderRemovals:
    """The folders that wait to be removed, each with its time.

    Their names are those of deleted logs: the next start removes what this has not come to.
    """

    def __init__(self, disk: Disk, clock: Clock, prng: random.Random) -> None:
        self._disk = disk
        self._clock = clock
        self._prng = prng
        self._waiting: list[tuple[int, str]] = []

    def path_beside(self, path: str, topic_partition: TopicPartition) -> str:
        """The path that a log's folder gets when the log is deleted: in the same log folder."""
        return f"{os.path.dirname(path)}/{deleted_folder_name(topic_partition, self._prng)}"

    def schedule(self, path: str, delay_ms: int) -> None:
        """Have a folder removed after a while."""
        self._waiting.append((self._clock.now_ms() + delay_ms, path))

    def remove_due(self, now_ms: int) -> None:
        """Remove the folders whose time has come; unlinking is slow, and not done on this thread."""
        due = [path for due_ms, path in self._waiting if due_ms <= now_ms]
        if due:
            self._waiting = [(due_ms, path) for due_ms, path in self._waiting if due_ms > now_ms]
            self._disk.in_background(partial(_remove_folders, self._disk, due))


def _remove_folders(disk: Disk, paths: Sequence[str]) -> None:
    for path in paths:
        try:
            disk.rmtree(path)
        except OSError as error:
            _logger.error("%s is not removed before the next start: %s", path, error)
