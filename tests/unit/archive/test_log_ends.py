"""Topics whose leaders are away do not keep the looks at the others waiting."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from headwater.logtier.client.cluster import TopicPartition
from headwater.logtier.client.errors import BrokerConnectionError, RequestTimeoutError
from headwater.pipelines.archive.log_ends import LogEnds

LIMIT_S = ATTEMPT_S = 5.0


class Cluster:
    """Each topic has two partitions with 3 and 4 offsets; an attempt that asks a silent leader takes its time."""

    def __init__(self, topics: Collection[str]) -> None:
        self.names = topics
        self.leaderless: set[TopicPartition] = set()
        self.silent: set[str] = set()
        self.asked: list[set[str]] = []
        self.now_s = 0.0

    def topics(self) -> dict[str, list[int]]:
        return {name: [0, 1] for name in self.names}

    def has_leader(self, topic: str, partition: int) -> bool:
        return (topic, partition) not in self.leaderless

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        topics = {name for name, _ in wanted}
        self.asked.append(topics)
        if topics & self.silent or set(wanted) & self.leaderless:
            self.now_s += ATTEMPT_S
            raise RequestTimeoutError("no answer")
        return {place: 3 + place[1] for place in wanted}


def test_the_ends_of_the_wanted_topics_are_asked_for_at_once() -> None:
    cluster = Cluster("abc")
    assert LogEnds(LIMIT_S, lambda: cluster.now_s).ask(cluster, {"a", "b", "gone"}) == {"a": 7, "b": 7}
    assert cluster.asked == [{"a", "b"}]
    assert LogEnds(LIMIT_S, lambda: cluster.now_s).ask(cluster, {"gone"}) == {}


def test_topics_without_a_leader_cost_no_time() -> None:
    cluster = Cluster("abc")
    cluster.leaderless = {("b", 1)}
    assert LogEnds(LIMIT_S, lambda: cluster.now_s).ask(cluster, "abc") == {"a": 7, "c": 7}
    assert cluster.now_s == 0


def test_leaders_that_do_not_answer_delay_the_others_for_a_bounded_time_and_each_gets_its_turn() -> None:
    names = "abcdefgh"
    cluster = Cluster(names)
    cluster.silent = set("bcdefg")
    ends = LogEnds(LIMIT_S, lambda: cluster.now_s)
    seen: set[str] = set()
    for _ in range(len(names)):
        before_s = cluster.now_s
        seen |= ends.ask(cluster, names).keys()
        assert cluster.now_s - before_s <= LIMIT_S + 2 * ATTEMPT_S
    assert seen == {"a", "h"}
    assert {name for asked in cluster.asked if len(asked) == 1 for name in asked} == set(names)


def test_that_no_broker_answers_is_an_error() -> None:
    cluster = Cluster("a")

    def away() -> dict[str, list[int]]:
        raise BrokerConnectionError("nobody")

    cluster.topics = away  # type: ignore[method-assign]
    with pytest.raises(BrokerConnectionError):
        LogEnds(LIMIT_S, lambda: cluster.now_s).ask(cluster, "a")
