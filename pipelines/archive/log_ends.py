"""The ends of many logs, asked again and again: one that does not tell its end keeps no other waiting."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from headwater.logtier.client.cluster import LATEST, TopicPartition
from headwater.logtier.client.errors import ClientError

__all__ = ["LogEnds"]

log = logging.getLogger(__name__)


class AskedCluster(Protocol):
    """What is asked of a `ClusterClient`."""

    def topics(self) -> Mapping[str, Sequence[int]]:
        """Every topic with its partitions."""

    def has_leader(self, topic: str, partition: int) -> bool:
        """Whether a partition has a leader."""

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """An offset for each partition, as soon as all leaders have answered."""


class LogEnds:
    """Asks for the ends of logs.

    All leaders are asked in one request each. If one does not answer, topic by topic for at most `limit_s` seconds, and
    one topic's time; the next call goes on with those that are left. Topics without a leader are not asked for.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        #: The last topic that was asked for alone.
        self._last = ""

    def ask(self, cluster: AskedCluster, names: Collection[str]) -> dict[str, int]:
        """The sum of the end offsets of each topic that tells them. Raises ClientError if no broker answers."""
        led = {
            name: partitions
            for name, partitions in cluster.topics().items()
            if name in names and all(cluster.has_leader(name, each) for each in partitions)
        }
        if not led:
            return {}
        try:
            return _ends(cluster, led)
        except ClientError as error:
            log.debug("the ends of the logs are asked for one by one: %s", error)
        found: dict[str, int] = {}
        until_s = self._clock() + self._limit_s
        for name in sorted(led, key=lambda each: (each <= self._last, each)):
            if self._clock() >= until_s:
                break
            self._last = name
            try:
                found |= _ends(cluster, {name: led[name]})
            except ClientError as error:
                log.debug("the end of %s is not known at present: %s", name, error)
        return found


def _ends(cluster: AskedCluster, topics: Mapping[str, Sequence[int]]) -> dict[str, int]:
    ends = dict.fromkeys(topics, 0)
    listed = cluster.list_offsets({(name, each): LATEST for name, found in topics.items() for each in found})
    for (name, _), offset in listed.items():
        ends[name] += offset
    return ends
