"""Which offsets an archive's consumer group has passed: those that its table had some time ago. Pure.

Queries over a table and its topic read the table at a version that they have chosen a while ago, and the log from that
version's offsets on. What retention may delete must therefore trail the table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

__all__ = ["TrailingOffsets"]

#: Versions that follow each other faster than this part of the grace count as one.
_STEPS: Final = 60
#: The brokers forget the offsets of a group without members after a time (offsets.retention.minutes, 7 days).
COMMITTED_AGAIN_S: Final = 3_600.0


class TrailingOffsets:
    """The versions of a table that are younger than the grace, and the newest that is not; times in seconds.

    >>> trailing = TrailingOffsets(grace_s=600)
    >>> trailing.committed({0: 5}, at_s=0)
    >>> trailing.committed({0: 9}, at_s=300)
    >>> trailing.due(now_s=599), trailing.due(now_s=600), trailing.due(now_s=900)
    (None, {0: 5}, {0: 9})
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._versions: deque[tuple[float, Mapping[int, int]]] = deque()
        self._passed: Mapping[int, int] | None = None
        self._is_news = False
        self._told_s = float("-inf")
        self._acknowledged: Mapping[int, int] | None = None

    def committed(self, ends: Mapping[int, int], at_s: float) -> None:
        """Note a version of the table, by its next offsets."""
        versions = self._versions
        if len(versions) > 1 and at_s - versions[-2][0] < self._grace_s / _STEPS:
            versions.pop()
        versions.append((at_s, dict(ends)))

    def begin(self, starts: Mapping[int, int]) -> None:
        """Note where a new table begins: due at once, as no query reads an older version of it."""
        self.forget()
        self._passed, self._is_news = dict(starts), True

    def forget(self) -> None:
        """Forget all versions: nothing is due until another one is noted."""
        self._versions.clear()
        self._passed, self._is_news, self._acknowledged = None, False, None

    def due(self, now_s: float) -> Mapping[int, int] | None:
        """The offsets that the group is to commit now; None if it has, a short time ago."""
        while self._versions and self._versions[0][0] <= now_s - self._grace_s:
            self._passed, self._is_news = self._versions.popleft()[1], True
        if self._passed is None or not (self._is_news or now_s - self._told_s >= COMMITTED_AGAIN_S):
            return None
        return self._passed

    def acknowledged(self, now_s: float) -> None:
        """Note that the group has committed what was due."""
        self._is_news, self._told_s, self._acknowledged = False, now_s, self._passed

    @property
    def passed(self) -> Mapping[int, int] | None:
        """What the group has committed last; None if nothing since the last `forget`."""
        return self._acknowledged
