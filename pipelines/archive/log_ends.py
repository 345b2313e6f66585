"""The ends of many logs, asked again and again: those that do not tell theirs delay the others for a moment only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from headwater.logtier.client.cluster import LATEST, TopicPartition
from headwater.logtier.client.errors import ClientError

__all__ = ["LEFT_OUT_S", "LogEnds"]

log = logging.getLogger(__name__)

#: How long a topic that did not tell its end is not asked for.
LEFT_OUT_S: Final = 15.0


class AskedCluster(Protocol):
    """What is asked of a `ClusterClient`."""

    def topics(self) -> Mapping[str, Sequence[int]]:
        """Every topic with its partitions."""

    def known_leader(self, topic: str, partition: int) -> int | None:
        """The node that leads a partition, by the last metadata."""

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """An offset for each partition, as soon as all leaders have answered."""


class LogEnds:
    """Asks for the ends of logs.

    Each leader is asked for all its partitions in one request. If that fails, topic by topic, for at most `limit_s`
    seconds and one topic's time. Topics that fail are left out for a while, and those of a leader that answers for none
    of them. Topics without a leader are not asked for.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        #: Until when topics are left out.
        self._left_out: dict[str, float] = {}

    def ask(self, cluster: AskedCluster, names: Collection[str]) -> dict[str, int]:
        """The sum of the end offsets of each topic that tells them. Raises ClientError if no broker answers."""
        now_s = self._clock()
        self._left_out = {name: until_s for name, until_s in self._left_out.items() if until_s > now_s}
        missing: dict[str, int] = {}
        by_leader: dict[int, dict[str, list[int]]] = {}
        for name, partitions in cluster.topics().items():
            leaders = [cluster.known_leader(name, each) for each in partitions]
            if name not in names or name in self._left_out or None in leaders:
                continue
            missing[name] = len(partitions)
            for partition, leader in zip(partitions, leaders, strict=True):
                if leader is not None:
                    by_leader.setdefault(leader, {}).setdefault(name, []).append(partition)
        ends = dict.fromkeys(missing, 0)
        for _, topics in sorted(by_leader.items()):
            for (name, _), offset in self._of_leader(cluster, topics).items():
                ends[name] += offset
                missing[name] -= 1
        return {name: end for name, end in ends.items() if not missing[name]}

    def _of_leader(self, cluster: AskedCluster, topics: Mapping[str, Sequence[int]]) -> dict[TopicPartition, int]:
        """The ends of the partitions of one leader, as far as it tells them."""
        try:
            return _ends(cluster, topics)
        except ClientError as error:
            log.debug("the ends of %d logs are asked for one by one: %s", len(topics), error)
        found: dict[TopicPartition, int] = {}
        until_s = self._clock() + self._limit_s
        for name, partitions in topics.items():
            if self._clock() >= until_s:
                break
            try:
                found |= _ends(cluster, {name: partitions})
            except ClientError as error:
                log.debug("the end of %s is not known at present: %s", name, error)
                self._left_out[name] = self._clock() + LEFT_OUT_S
        if not found:
            self._left_out |= dict.fromkeys(topics, self._clock() + LEFT_OUT_S)
        return found


def _ends(cluster: AskedCluster, topics: Mapping[str, Sequence[int]]) -> dict[TopicPartition, int]:
    return dict(cluster.list_offsets({(name, each): LATEST for name, found in topics.items() for each in found}))
