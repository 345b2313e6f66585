"""Up to which change of the metadata a broker has come, in its log folders: a store that ends before it is too old."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from headwater.logtier.log.flushing.checkpoints import CheckpointWriter, read_checkpoint_or_warn
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

APPLIED_CHANGES: Final = "applied-changes-checkpoint"

WRITE_EVERY_S: Final = 30.0
"""A number that is too low is safe: it tells less of the store's age."""

_LIST: Final = TopicPartition("__cluster_metadata", 0)


def read_applied_changes(log_manager: LogManager) -> int:
    """Return the largest number in the online folders; 0 without one."""
    consequence = "whether the metadata are older than this folder is not known"
    found = [
        read_checkpoint_or_warn(log_manager.disk, directory, APPLIED_CHANGES, consequence)
        for directory in log_manager.directories
        if directory.is_online
    ]
    return max((offsets.get(_LIST, 0) for offsets in found), default=0)


class AppliedChanges:
    """Writes the number of the next change into each log folder, in the format of offset checkpoints."""

    def __init__(self, log_manager: LogManager, applied: Callable[[], int]) -> None:
        """`applied` returns the number of the next change that this broker applies."""
        self._log_manager = log_manager
        self._applied = applied
        self._writer = CheckpointWriter(log_manager.disk)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Write it now, and from time to time."""
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Write it for the next start, and wait for it; an error is logged."""
        if self._task is not None:
            self._task.cancel()
            self._write()
            self._writer.wait()

    async def _run(self) -> None:
        while True:
            try:
                self._write()
            except Exception:
                logger.exception("the number of applied changes is not written")
            await asyncio.sleep(WRITE_EVERY_S)

    def _write(self) -> None:
        for directory in self._log_manager.directories:
            if directory.is_online:
                self._writer.write(directory, APPLIED_CHANGES, {_LIST: self._applied()})
