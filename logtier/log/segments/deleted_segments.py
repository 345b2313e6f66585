"""Segments that left their log: their files go later, beside the event loop."""

import logging
from collections import deque

from headwater.logtier.log.segments.segment import LogSegment
from headwater.logtier.runtime.disk import Disk

logger = logging.getLogger(__name__)


class DeletedSegments:
    """The segments that a log has let go of, in the order of their deadlines.

    Their files have names that the next start removes, whatever becomes of this.
    """

    __slots__ = ("_disk", "_waiting")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: deque[tuple[int, LogSegment]] = deque()

    def add(self, segment: LogSegment, deadline_ms: int) -> None:
        """Mark a segment's files; they go after the deadline, for the sake of reads under way."""
        try:
            segment.mark_deleted()
        except OSError as error:
            # They stay. Being the oldest, or replaced, they are found and deleted again by the next start.
            logger.error("%s is not deleted before the next start: %s", segment.log_path, error)
            return
        finally:
            segment.release()
        self._waiting.append((deadline_ms, segment))

    def remove_due(self, now_ms: int) -> None:
        """Remove the files whose deadline is over. Unlinking takes milliseconds per 100 MB: not on this thread."""
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
            logger.error("%s is not removed before the next start: %s", segment.log_path, error)
