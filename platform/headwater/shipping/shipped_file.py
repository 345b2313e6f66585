"""One file that is being shipped: which of its lines are under way, whether it still grows, whether it fails."""

from __future__ import annotations

from collections import deque
from typing import Final

from headwater.shipping.followed_file import FollowedFile
from headwater.shipping.growing_pause import GrowingPause

GRACE_S: Final = 60.0
"""How long a file without a name must not have grown until it counts as finished: after a rename the writer goes on in
it until it is told to open the new one, seconds later, and what it holds in a buffer comes later still."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0


class Sent:
    """One line under way: where it begins, where the next one begins, and its bytes without its end."""

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
    """One open file and its lines under way, in their order.

    Invariant: `offset` is behind the last line before which all are acknowledged, and of the content that the file has
    the fingerprint of.

    Lines are marked as they arrive, and what that means for the file is counted when somebody asks: not for each line.
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
        """Behind the last line before which all are dealt with."""
        self._count_arrived()
        return self._offset

    @property
    def under_way(self) -> int:
        """How many of its lines are neither acknowledged nor to be sent again."""
        self._count_arrived()
        return len(self._under_way)

    @property
    def unsent_bytes(self) -> int:
        """How much of it is not acknowledged."""
        return max(0, self._size() - self.offset)

    def has_begun_anew(self) -> bool:
        """Whether it was written anew since this was asked last; lines under way are then of what was cut away."""
        if self.cuts == self.file.cuts:
            return False
        # Their ends say nothing about what the file holds now.
        self.cuts = self.file.cuts
        self._offset = 0
        self._under_way.clear()
        return True

    def add(self, sent: Sent) -> None:
        """This line, the next one, is under way."""
        self._under_way.append(sent)

    def _count_arrived(self) -> None:
        under_way = self._under_way
        while under_way and under_way[0].has_arrived:
            self._offset = under_way.popleft().end

    def send_again(self, sent: Sent) -> bool:
        """It was not taken: go back to it, and all that follow; false if the file does not hold it any more."""
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
        """It has this name now."""
        self.file.path = path
        self.is_done = False
        self._quiet_since_s = None

    def nameless(self, now_s: float) -> None:
        """No name leads to it any more; whoever has it open may still write to it."""
        size = self._size()
        if self._quiet_since_s is None or size != self._seen_bytes:
            self._quiet_since_s, self._seen_bytes = now_s, size
            self.is_done = False

    def is_finished(self, now_s: float) -> bool:
        """Whether nobody can be expected to write to it."""
        is_quiet = self._quiet_since_s is not None and now_s >= self._quiet_since_s + GRACE_S
        return is_quiet and self._size() == self._seen_bytes

    def is_ready(self, now_s: float) -> bool:
        """Whether it is its turn to be read."""
        if self.is_done or not self.retry.is_over(now_s):
            return False
        if self.after is not None and (self.after.is_at_end or self.after.is_failing):
            self.after = None
        return self.after is None

    def is_asleep(self, now_s: float) -> bool:
        """Whether it need not be looked at before its name says that it was written to."""
        is_quiet = self.is_at_end and self._quiet_since_s is None and not self.is_failing
        return is_quiet and now_s >= self.awake_until_s

    def is_idle(self) -> bool:
        """Whether it may be closed: it has a name and was read to its end, and all of that is acknowledged."""
        return self.is_at_end and self._quiet_since_s is None and not self.is_failing and not self.under_way

    def _size(self) -> int:
        try:
            return self.file.size
        except OSError:
            return self._seen_bytes  # of a file system that is away
