"""Which archives have a round to run, and in which order. Pure: times are seconds of a monotonic clock.

A round is a commit, so that a topic's records wait until half of its freshness is over, or until there are enough of
them for a commit of full size; the other half is for the round itself. An archive that is far behind runs round after
round, in turn with others that are, but never in the last free place: a live one need not wait for its end. Those whose
last rounds have failed never have all places either: their next ones may hang.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["LONG_AT_ONCE", "RETRY_S_MAX", "TopicProgress", "due", "to_open"]

RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 300.0
#: A round that has run for longer takes no place. It is left alone: a thread cannot be ended, and it may be at work.
LONG_S: Final = 180.0
#: Rounds that take no place; those beyond take one each. It bounds the threads and the jobs of a driver whose name node
#: keeps silent, or which is far behind on a slow machine.
LONG_AT_ONCE: Final = 12
_NEVER: Final = float("-inf")


@dataclass(slots=True)
class TopicProgress:
    """How far one archive is.

    Attributes:
        freshness_s: How long a record may wait.
        round_offsets: About how many offsets a round takes.
        archived: Offsets in the table, in all; -1 until a round has told.
        ends: Offsets in the log, in all.
        pending_s: When offsets were first seen that the table lacks; None while it lacks none. Until a round has told,
            it may lack any of the log's.
        short_s: Since when the log has been shorter than the table: it may be that of a topic made anew, or have lost
            records, which a round finds out. None while it is not.
        is_behind: Whether the last round has left offsets that were there.
        is_open: Whether this driver has the archive's lock.
        is_opening: Whether the lock is being taken.
        is_elsewhere: Whether another driver has it: that one knows how far the table is.
        is_running: Whether a round is running.
        is_maintained: Whether the table is compacted or vacuumed: a round might be in conflict with it.
        began_s: When the last round began.
        failures: Failures in a row.
        not_before_s: Nothing begins before.
    """

    freshness_s: float
    round_offsets: int
    archived: int = -1
    ends: int = 0
    pending_s: float | None = None
    short_s: float | None = None
    is_behind: bool = False
    is_open: bool = False
    is_opening: bool = False
    is_elsewhere: bool = False
    is_running: bool = False
    is_maintained: bool = False
    began_s: float = _NEVER
    failures: int = 0
    not_before_s: float = _NEVER

    def seen(self, ends: int, now_s: float) -> None:
        """Note the log's end offsets, in all."""
        self.ends = ends
        if ends > max(self.archived, 0) and self.pending_s is None and not self.is_elsewhere:
            self.pending_s = now_s
        if ends >= self.archived:
            self.short_s = None
        elif self.short_s is None:
            self.short_s = now_s

    def opened(self) -> None:
        """The archive's lock is this driver's."""
        self.is_open, self.is_opening, self.is_elsewhere = True, False, False

    def lost(self) -> None:
        """The archive's lock is no longer this driver's."""
        self.is_open = self.is_opening = False

    def held(self) -> None:
        """Another driver has the archive's lock, and adds what was pending here."""
        self.lost()
        self.forget()
        self.is_elsewhere = True

    def forget(self) -> None:
        """Nothing is known of the table any more."""
        self.archived, self.pending_s, self.short_s, self.is_behind = -1, None, None, False

    def began(self, now_s: float) -> None:
        """A round begins."""
        self.is_running, self.began_s = True, now_s

    def succeeded(self, archived: int, backlog: int) -> None:
        """A round has ended; the table has `archived` offsets, and the log had `backlog` more."""
        self.is_running, self.failures, self.not_before_s = False, 0, _NEVER
        self.archived, self.is_behind, self.short_s = archived, backlog > 0, None
        self.ends = max(self.ends, archived + backlog)  # the last look may be older, or have failed
        # What has come meanwhile may have come right after the round's beginning.
        self.pending_s = self.began_s if self.ends > archived else None

    def failed(self, now_s: float, wait_s: float | None = None) -> float:
        """A round has failed, or the lock was not taken; return the seconds until the next attempt."""
        self.is_running = self.is_opening = False
        if wait_s is None:
            wait_s = min(RETRY_S * (1 << min(self.failures, 16)), RETRY_S_MAX)
        self.failures += 1
        self.not_before_s = now_s + wait_s
        return wait_s

    @property
    def is_late(self) -> bool:
        """Whether its rounds may take long, or for ever: it is far behind, or its last round has failed."""
        return self.is_behind or self.failures > 0

    def is_long(self, now_s: float) -> bool:
        """Whether its round has run for so long that others need not wait for its end."""
        return self.is_running and now_s - self.began_s >= LONG_S

    def is_due(self, now_s: float) -> bool:
        """Whether a round is to be run."""
        if not self.is_open or self.is_running or self.is_maintained or now_s < self.not_before_s:
            return False
        if self.archived < 0 or self.is_behind or self.failures:
            return True
        if self.short_s is not None and now_s - self.short_s >= self.freshness_s / 2:
            return True
        if self.pending_s is None:
            return False
        return now_s - self.pending_s >= self.freshness_s / 2 or self.ends - self.archived >= self.round_offsets


def to_open(topics: Sequence[TopicProgress], now_s: float, places: int) -> list[TopicProgress]:
    """The archives whose locks are taken now, in order; `places` is how many may be taken at a time."""
    free = places - sum(each.is_opening for each in topics)
    waiting = [each for each in topics if not each.is_open and not each.is_opening and now_s >= each.not_before_s]
    return waiting[: max(free, 0)]


def due(
    topics: Sequence[TopicProgress], now_s: float, places: int, ending: Sequence[TopicProgress] = ()
) -> list[TopicProgress]:
    """The archives whose rounds begin now; live ones first, by the share of their time that their records have waited.

    Those that are behind take turns. `places` is how many rounds may run at a time, also those that run already, among
    them those of archives that are `ending`; long ones take none.
    """
    running = [each for each in (*topics, *ending) if each.is_running]
    brief = [each for each in running if not each.is_long(now_s)]
    free = places - len(brief) - max(len(running) - len(brief) - LONG_AT_ONCE, 0)
    waiting = [each for each in topics if each.is_due(now_s)]
    # A place is kept for those whose rounds end soon.
    kept = 1 if places > 1 else 0
    may_fail = places - kept - sum(each.is_late for each in brief)
    chosen: list[TopicProgress] = []
    live = (each for each in waiting if not each.is_behind)
    for each in sorted(live, key=lambda each: -_share_waited(each, now_s)):
        if len(chosen) >= free:
            break
        if each.failures:
            if may_fail <= 0:
                continue
            may_fail -= 1
        chosen.append(each)
    behind = sorted((each for each in waiting if each.is_behind), key=lambda each: each.began_s)
    return chosen + behind[: max(free - len(chosen) - kept, 0)]


def _share_waited(topic: TopicProgress, now_s: float) -> float:
    if topic.failures:
        # Not the time of its records: it would come first at each attempt.
        return (now_s - topic.not_before_s) / min(topic.freshness_s, RETRY_S_MAX)
    if topic.archived < 0:
        return math.inf  # nobody knows how long its records wait
    return 0.0 if topic.pending_s is None else (now_s - topic.pending_s) / topic.freshness_s
