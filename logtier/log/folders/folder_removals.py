"""Names and delayed removal of the folders of deleted logs."""

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
    """Folders of deleted logs, each with the time of its removal.

    The names mark the folders as deleted: the next start removes the remaining ones.
    """

    def __init__(self, disk: Disk, clock: Clock, prng: random.Random) -> None:
        self._disk = disk
        self._clock = clock
        self._prng = prng
        self._waiting: list[tuple[int, str]] = []

    def path_beside(self, path: str, topic_partition: TopicPartition) -> str:
        """Return a new path in the same log folder, named as that of a deleted log."""
        return f"{os.path.dirname(path)}/{deleted_folder_name(topic_partition, self._prng)}"

    def schedule(self, path: str, delay_ms: int) -> None:
        """Remove a folder after `delay_ms`."""
        self._waiting.append((self._clock.now_ms() + delay_ms, path))

    def remove_due(self, now_ms: int) -> None:
        """Remove the folders whose time has come, on another thread, since unlinking is slow."""
        due = [path for due_ms, path in self._waiting if due_ms <= now_ms]
        if due:
            self._waiting = [(due_ms, path) for due_ms, path in self._waiting if due_ms > now_ms]
            self._disk.in_background(partial(_remove_folders, self._disk, due))


def _remove_folders(disk: Disk, paths: Sequence[str]) -> None:
    for path in paths:
        try:
            disk.rmtree(path)
        except OSError as error:
            _logger.error("%s cannot be removed before the next start: %s", path, error)
