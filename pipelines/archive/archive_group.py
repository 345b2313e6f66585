"""The consumer group of an archive, which trails its table: retention holds what the group has not passed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from headwater.logtier.client.cluster import ClusterClient, TopicPartition
from headwater.logtier.client.errors import ClientError
from headwater.logtier.client.group_offsets import commit_group_offsets
from headwater.pipelines.archive.trailing_offsets import TrailingOffsets

__all__ = ["GROUP_PREFIX", "ArchiveGroup"]

log = logging.getLogger(__name__)

GROUP_PREFIX: Final = "headwater.archive."
#: After a commit that failed, doubled with each further one: each takes as long as brokers are waited for.
RETRY_S: Final = 5.0
RETRY_S_MAX: Final = 300.0


class ArchiveGroup:
    """The group `headwater.archive.TOPIC`, for one topic id. Thread-safe: rounds note offsets, another thread commits.

    Invariant: only offsets of the topic with the present id are committed. Up to version 9, OffsetCommit names topics,
    and the coordinator takes the offsets for those of the topic that has the name now: with offsets of a topic that was
    deleted, retention would delete records of its successor that nobody has archived.

    Args:
        grace_s: How far the group trails the table.
        clock: Seconds since 1970.
        commit: As `commit_group_offsets`.
    """

    def __init__(
        self,
        topic: str,
        grace_s: float,
        *,
        clock: Callable[[], float] = time.time,
        commit: Callable[[ClusterClient, str, Mapping[TopicPartition, int]], None] = commit_group_offsets,
    ) -> None:
        self._topic = topic
        self._clock = clock
        self._commit = commit
        self._trailing = TrailingOffsets(grace_s)
        self._topic_id = ""
        self._failures = 0
        self._failed_s = 0.0
        #: Of what is above.
        self._state = threading.Lock()
        #: Of commits, taken first: an older one must not overtake the one with which an archive begins.
        self._committing = threading.Lock()

    def of_topic(self, topic_id: str) -> None:
        """Forget what was noted: what follows are offsets of the topic with this id."""
        self.forget()
        with self._state:
            self._topic_id, self._failures = topic_id, 0

    def forget(self) -> None:
        """Forget what was noted: nothing of it is committed once this has returned."""
        with self._committing, self._state:
            self._trailing.forget()

    def noted(self, ends: Mapping[int, int], at_s: float) -> None:
        """Note a version of the table, by its next offsets."""
        with self._state:
            self._trailing.committed(ends, at_s)

    @property
    def passed(self) -> Mapping[int, int] | None:
        """The offsets that the group has, as far as this driver has committed them."""
        with self._state:
            return self._trailing.passed

    def begin(self, cluster: ClusterClient, starts: Mapping[int, int]) -> None:
        """Commit the offsets at which a new table begins: the group may be where another table was."""
        with self._committing:
            with self._state:
                self._trailing.begin(starts)
                self._failures = 0
            self._commit_due(cluster)

    def commit(self, cluster: ClusterClient) -> None:
        """Commit what the table had `grace_s` ago, if that is new; after a failure only when some time has passed."""
        with self._committing:
            self._commit_due(cluster)

    def _commit_due(self, cluster: ClusterClient) -> None:
        now_s = self._clock()
        with self._state:
            ends = None if self._is_waiting(now_s) else self._trailing.due(now_s)
        if not ends:
            return
        topic = self._topic
        try:
            cluster.partitions(topic)
            present = cluster.topic_id(topic)
            is_present = str(present) == self._topic_id
            if is_present:
                self._commit(cluster, f"{GROUP_PREFIX}{topic}", {(topic, p): end for p, end in ends.items()})
        except ClientError as error:
            with self._state:
                level = logging.DEBUG if self._failures else logging.WARNING
                self._failures, self._failed_s = self._failures + 1, self._clock()
            log.log(level, "the offsets of the archive of %s are not committed to its group: %s", topic, error)
            return
        with self._state:
            self._failures = 0
            if is_present:
                self._trailing.acknowledged(now_s)
            elif present is not None:  # a broker that does not know the topic yet, or any more, says nothing
                self._trailing.forget()

    def _is_waiting(self, now_s: float) -> bool:
        """Whether it is too early after a failure. A clock that was set back does not prolong it."""
        if not self._failures:
            return False
        return 0 <= now_s - self._failed_s < min(RETRY_S * (1 << min(self._failures - 1, 16)), RETRY_S_MAX)
