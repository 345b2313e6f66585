"""Which archives have a round to run, and in which order. Pure: times are seconds of a monotonic clock.

A round is a commit, so that a topic's records wait until half of its freshness is over, or until there are enough of
them for a commit of full size; the other half is for the round itself. An archive that is far behind runs round after
round, but never in the last free place: a live one need not wait for its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["RETRY_S_MAX", "TopicProgress", "due"]

RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 300.0


@dataclass(slots=True)
class TopicProgress:
    """How far one archive is.

    Attributes:
        freshness_s: How long a record may wait.
        round_offsets: About how many offsets a round takes.
        archived: Offsets in the table, in all; -1 until a round has told.
        ends: Offsets in the log, in all.
        pending_s: When offsets were first seen that the table lacks; None while it lacks none.
        is_behind: Whether the last round has left offsets that were there.
        is_running: Whether a round is running.
        failures: Failed rounds in a row.
        not_before_s: No round begins before.
    """

    freshness_s: float
    round_offsets: int
    archived: int = -1
    ends: int = 0
    pending_s: float | None = None
    is_behind: bool = False
    is_running: bool = False
    failures: int = 0
    not_before_s: float = float("-inf")

    def seen(self, ends: int, now_s: float) -> None:
        """Note the log's end offsets, in all."""
        self.ends = ends
        if self.archived >= 0 and ends > self.archived and self.pending_s is None:
            self.pending_s = now_s

    def began(self) -> None:
        """A round begins."""
        self.is_running = True

    def succeeded(self, archived: int, backlog: int, now_s: float) -> None:
        """A round has ended; the table has `archived` offsets, and the log had `backlog` more."""
        self.is_running, self.failures, self.not_before_s = False, 0, float("-inf")
        self.archived, self.is_behind = archived, backlog > 0
        self.pending_s = now_s if self.ends > archived else None

    def failed(self, now_s: float) -> float:
        """A round has failed; return the seconds until the next one."""
        self.is_running = False
        wait_s = min(RETRY_S * (1 << min(self.failures, 16)), RETRY_S_MAX)
        self.failures += 1
        self.not_before_s = now_s + wait_s
        return wait_s

    def is_due(self, now_s: float) -> bool:
        """Whether a round is to be run."""
        if self.is_running or now_s < self.not_before_s:
            return False
        if self.archived < 0 or self.is_behind or self.failures:
            return True
        if self.pending_s is None:
            return False
        return now_s - self.pending_s >= self.freshness_s / 2 or self.ends - self.archived >= self.round_offsets


def due(topics: Iterable[TopicProgress], now_s: float, places: int) -> list[TopicProgress]:
    """The archives whose rounds begin now; those first whose records have waited for the largest part of their time.

    `places` is how many rounds may run at a time, also those that run already.
    """
    known = list(topics)
    free = places - sum(each.is_running for each in known)
    waiting = [each for each in known if each.is_due(now_s)]
    live = [each for each in waiting if not each.is_behind]
    live.sort(key=lambda each: -(now_s - (each.pending_s if each.pending_s is not None else now_s)) / each.freshness_s)
    # The last place is kept for live ones.
    behind = [each for each in waiting if each.is_behind]
    chosen = live[: max(free, 0)]
    return chosen + behind[: max(free - len(chosen) - (1 if places > 1 else 0), 0)]
