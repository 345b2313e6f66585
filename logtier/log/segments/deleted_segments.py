"""Segments removed from their log; their files are deleted later, outside the event loop."""

import logging
from collections import deque

from headwater.logtier.log.segments.segment import LogSegment
from headwater.logtier.runtime.disk import Disk

logger = logging.getLogger(__name__)


class DeletedSegments:
    """The segments removed from a log, in the order of their deadlines.

    The names of their files mark them as deleted: the next start removes the remaining ones.
    """

    __slots__ = ("_disk", "_waiting")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: deque[tuple[int, LogSegment]] = deque()

    def add(self, segment: LogSegment, deadline_ms: int) -> None:
        """Mark a segment's files as deleted; they are removed after the deadline, since reads may still use them."""
        try:
            segment.mark_deleted()
        except OSError as error:
            # The files stay. The next start finds the segment again, as the oldest or as replaced, and deletes it.
            logger.error("%s cannot be deleted before the next start: %s", segment.log_path, error)
            return
        finally:
            segment.release()
        self._waiting.append((deadline_ms, segment))

    def remove_due(self, now_ms: int) -> None:
        """Remove the files whose deadline has passed, on another thread: unlinking takes milliseconds per 100 MB."""
        due: list[LogSegment] = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            due.append(self._waiting.popleft()[1])
        if due:
            self._disk.in_background(lambda: _remove(due))


def _remove(segments: list[LogSegment]) -> None:
    for segment in segments:
        try:
            segment.remove_deleted()
        except OSError as error:
            logger.error("%s cannot be removed before the next start: %s", segment.log_path, error)
