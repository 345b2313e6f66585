"""One file being shipped: its lines in flight, whether it still grows, whether reading fails."""

from __future__ import annotations

from collections import deque
from typing import Final

from headwater.shipping.followed_file import FollowedFile
from headwater.shipping.growing_pause import GrowingPause

GRACE_S: Final = 60.0
"""How long a file without a name must not grow until it counts as finished: after a rename, the writer continues with
the old file until it reopens its log, seconds later, and its buffered data arrives later still."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0


class Sent:
    """A line in flight: its start, the start of the next line, and its size in bytes without the terminator."""

    __slots__ = ("begin", "cuts", "end", "has_arrived", "round", "size")

    def __init__(self, begin: int, end: int, size: int, cuts: int, round_: int) -> None:
        self.begin = begin
        self.end = end
        self.size = size
        self.cuts = cuts
        self.round = round_
        #: Or is dealt with otherwise.
        self.has_arrived = False


class ShippedFile:
    """One open file and its lines in flight, in order.

    Invariant: all lines before `offset` are acknowledged or refused, and `offset` refers to the content with the file's
    fingerprint.

    Lines are marked as they arrive; `offset` is computed on request instead of per line.
    """

    def __init__(self, file: FollowedFile, after: ShippedFile | None) -> None:
        self.file = file
        #: How often its file had begun anew when that was asked last, and how often lines were gone back to.
        self.cuts = file.cuts
        self.round = 0
        #: What had its name before, until that has been read to its end.
        self.after = after
        #: Its last turn handed out all that it had.
        self.is_at_end = False
        #: It has no name any more, has been quiet for long and was read to its end.
        self.is_done = False
        #: Reading it failed, and has not succeeded since.
        self.is_failing = False
        #: When it need not be looked at in every turn any more.
        self.awake_until_s = 0.0
        self.retry = GrowingPause(RETRY_FIRST_S, RETRY_MAX_S)
        self._offset = file.position
        self._under_way: deque[Sent] = deque()
        self._quiet_since_s: float | None = None
        self._seen_bytes = 0

    @property
    def offset(self) -> int:
        """End of the last line before which all lines are acknowledged or refused."""
        self._count_arrived()
        return self._offset

    @property
    def under_way(self) -> int:
        """Number of lines that are neither acknowledged nor to be sent again."""
        self._count_arrived()
        return len(self._under_way)

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that are not acknowledged."""
        return max(0, self._size() - self.offset)

    def has_begun_anew(self) -> bool:
        """Whether the file was rewritten since the last call; lines in flight then belong to the previous content."""
        if self.cuts == self.file.cuts:
            return False
        # Their ends say nothing about what the file holds now.
        self.cuts = self.file.cuts
        self._offset = 0
        self._under_way.clear()
        return True

    def add(self, sent: Sent) -> None:
        """Add the next line to the lines in flight."""
        self._under_way.append(sent)

    def _count_arrived(self) -> None:
        under_way = self._under_way
        while under_way and under_way[0].has_arrived:
            self._offset = under_way.popleft().end

    def send_again(self, sent: Sent) -> bool:
        """Return to a line that was not accepted, and all lines after it; False if the file no longer contains it."""
        self.has_begun_anew()
        if sent.cuts != self.cuts:
            return False
        if sent.round == self.round:
            offset = self.offset
            # What is told of the lines behind it is of this round, and does not count any more.
            self.round += 1
            self._under_way.clear()
            self.is_at_end = self.is_done = False
            self.file.go_back(offset)
        return True

    def named(self, path: str) -> None:
        """Record the file's current name."""
        self.file.path = path
        self.is_done = False
        self._quiet_since_s = None

    def nameless(self, now_s: float) -> None:
        """Record that no name refers to the file; a process that has it open may still write to it."""
        size = self._size()
        if self._quiet_since_s is None or size != self._seen_bytes:
            self._quiet_since_s, self._seen_bytes = now_s, size
            self.is_done = False

    def is_finished(self, now_s: float) -> bool:
        """Whether no further writes are expected."""
        is_quiet = self._quiet_since_s is not None and now_s >= self._quiet_since_s + GRACE_S
        return is_quiet and self._size() == self._seen_bytes

    def is_ready(self, now_s: float) -> bool:
        """Whether the file may be read now."""
        if self.is_done or not self.retry.is_over(now_s):
            return False
        if self.after is not None and (self.after.is_at_end or self.after.is_failing):
            self.after = None
        return self.after is None

    def is_asleep(self, now_s: float) -> bool:
        """Whether the file can be left alone until a scan of names reports a write."""
        is_quiet = self.is_at_end and self._quiet_since_s is None and not self.is_failing
        return is_quiet and now_s >= self.awake_until_s

    def is_idle(self) -> bool:
        """Whether the file may be closed: it has a name, was read to its end, and all its lines are acknowledged."""
        return self.is_at_end and self._quiet_since_s is None and not self.is_failing and not self.under_way

    def _size(self) -> int:
        try:
            return self.file.size
        except OSError:
            return self._seen_bytes  # of a file system that is away
