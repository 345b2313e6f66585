"""Changes of a topic while a command reads it: deletion, recreation, added partitions.

librdkafka leaves all three to the application: a consumer with assigned partitions waits forever for a deleted topic,
and is not informed of added partitions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headwater.api.topic_model import ErrorCode, TopicAdminError, TopicInfo

INTERVAL_S = 3.0
"""Interval between descriptions; the delay until an added partition is read."""

MISSES_BEFORE_GONE = 2
"""Consecutive descriptions without the topic: a broker that has just started may not know it yet."""


class TopicGoneError(Exception):
    """The topic was deleted, or deleted and created again under the same name; the message reports which."""


def changes(before: TopicInfo, now: TopicInfo) -> frozenset[int]:
    """Return the added partitions.

    Raises:
        TopicGoneError: the topic was recreated under the same name; its offsets refer to other records.
    """
    if now.topic_id != before.topic_id:
        raise TopicGoneError(f"topic {before.name!r} was deleted and created again")
    return frozenset(part.partition for part in now.partitions) - {part.partition for part in before.partitions}


class TopicWatch:
    """Describes one topic periodically in a thread of its own, so an unreachable broker blocks no caller.

    The thread calls `describe`, which raises TopicAdminError. All codes except UNKNOWN_TOPIC are ignored: the consumer
    itself reports an outage. Used as a context manager.
    """

    def __init__(
        self, first: TopicInfo, describe: Callable[[str], TopicInfo], *, interval_s: float = INTERVAL_S
    ) -> None:
        self._known = first
        self._describe = describe
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._newest: TopicInfo | None = first
        self._thread = threading.Thread(target=self._look, name="topic watch", daemon=True)

    def __enter__(self) -> TopicWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Not joined: it may be waiting for a broker.
        self._ended.set()

    def added_partitions(self) -> frozenset[int]:
        """Return the partitions added since the last call.

        Raises:
            TopicGoneError: the topic no longer exists.
        """
        newest = self._newest  # read once: the thread may put another in its place
        if newest is None:
            raise TopicGoneError(f"topic {self._known.name!r} was deleted")
        if newest is self._known:
            return frozenset()
        added = changes(self._known, newest)
        self._known = newest
        return added

    def _look(self) -> None:
        name = self._known.name
        misses = 0
        while not self._ended.wait(self._interval_s):
            try:
                found: TopicInfo | None = self._describe(name)
                misses = 0
            except TopicAdminError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC:
                    continue
                misses += 1
                if misses < MISSES_BEFORE_GONE:
                    continue
                found = None
            self._newest = found
