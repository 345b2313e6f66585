"""When the active segment of a log gets a new checkpoint, and when its checkpoint is invalid."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from headwater.logtier.log.segments.active_checkpoint import (
    ActiveCheckpoint,
    read_checkpointed_base,
    remove_active_checkpoint,
)
from headwater.logtier.log.segments.segment import LogSegment
from headwater.logtier.runtime.disk import Disk

_NO_BASE: Final = -1


class ActiveCheckpoints:
    """The checkpoints of a log's active segment, one after the other; the log owns it and the flusher writes them.

    File: see `segments.active_checkpoint`. Invariant: a checkpoint that `forget` invalidated does not survive, even if
    its write was in progress.
    """

    __slots__ = ("_base", "_bytes", "_disk", "forgotten")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        # grown_bytes of the log and the base offset of the active segment at the last checkpoint.
        self._bytes = 0
        self._base = _NO_BASE
        #: Number of invalidations.
        self.forgotten = 0

    def next(
        self, interval_bytes: int, log_bytes: int, active: LogSegment, make: Callable[[], ActiveCheckpoint]
    ) -> ActiveCheckpoint | None:
        """Make a checkpoint if the log grew by `interval_bytes` to `log_bytes` since the last one."""
        unknown_bytes = log_bytes - self._bytes
        if unknown_bytes and self._base < 0:
            # The bytes at open may not be covered by any checkpoint.
            unknown_bytes = max(unknown_bytes, active.size)
        if unknown_bytes < interval_bytes or not active.size:
            return None
        self._bytes = log_bytes
        self._base = active.base_offset
        return make()

    def forget(self, directory: str, among: Collection[int] | None = None) -> bool:
        """Invalidate the checkpoint, including a write in progress; return whether it was. Raises OSError.

        With `among`, the checkpoint is invalidated only if the base offset of its segment is among them.
        """
        if among is not None and self._base not in among and read_checkpointed_base(self._disk, directory) not in among:
            return False
        self.forgotten += 1
        self._base = _NO_BASE
        remove_active_checkpoint(self._disk, directory)
        # Removed again after a write that may be in progress.
        self._disk.in_background(partial(remove_active_checkpoint, self._disk, directory))
        return True

    def restart(self, directory: str) -> None:
        """Invalidate the checkpoint of a log whose growth is counted anew; raises OSError."""
        self._bytes = 0
        self.forget(directory)
