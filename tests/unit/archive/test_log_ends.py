"""Topics whose leaders are away do not keep the looks at the others waiting."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from headwater.logtier.client.cluster import TopicPartition
from headwater.logtier.client.errors import BrokerConnectionError, RequestTimeoutError
from headwater.pipelines.archive.log_ends import LEFT_OUT_S, LogEnds

LIMIT_S = ATTEMPT_S = 5.0


class Cluster:
    """Each topic has two partitions with 3 and 4 offsets, led by the nodes 0 and 1, unless `leaders` says otherwise.

    An attempt that asks a silent node, or for a silent topic, takes its time.
    """

    def __init__(self, topics: Collection[str]) -> None:
        self.names = topics
        self.leaders: dict[TopicPartition, int | None] = {}
        self.silent: set[int | str] = set()
        self.asked: list[set[str]] = []
        self.now_s = 0.0

    def topics(self) -> dict[str, list[int]]:
        return {name: [0, 1] for name in self.names}

    def known_leader(self, topic: str, partition: int) -> int | None:
        return self.leaders.get((topic, partition), partition)

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.asked.append({name for name, _ in wanted})
        assert len({self.known_leader(*place) for place in wanted}) == 1, "a request has one leader"
        if any(name in self.silent or self.known_leader(name, each) in self.silent for name, each in wanted):
            self.now_s += ATTEMPT_S
            raise RequestTimeoutError("no answer")
        return {place: 3 + place[1] for place in wanted}


def ends_of(cluster: Cluster) -> LogEnds:
    return LogEnds(LIMIT_S, lambda: cluster.now_s)


def test_the_ends_of_the_wanted_topics_are_asked_for_at_once() -> None:
    cluster = Cluster("abc")
    assert ends_of(cluster).ask(cluster, {"a", "b", "gone"}) == {"a": 7, "b": 7}
    assert cluster.asked == [{"a", "b"}, {"a", "b"}]
    assert ends_of(cluster).ask(cluster, {"gone"}) == {}


def test_topics_without_a_leader_cost_no_time() -> None:
    cluster = Cluster("abc")
    cluster.leaders[("b", 1)] = None
    assert ends_of(cluster).ask(cluster, "abc") == {"a": 7, "c": 7}
    assert cluster.now_s == 0


def test_a_leader_that_does_not_answer_delays_one_look_in_a_while() -> None:
    names = [f"t{number:02}" for number in range(30)]
    cluster = Cluster(names)
    for name in names[:20]:
        cluster.leaders |= {(name, 0): 0, (name, 1): 0}
    for name in names[20:]:
        cluster.leaders |= {(name, 0): 0, (name, 1): 1}
    cluster.silent = {1}
    ends = ends_of(cluster)
    assert ends.ask(cluster, names).keys() == set(names[:20])
    assert cluster.now_s == 2 * ATTEMPT_S
    for _ in range(3):
        assert ends.ask(cluster, names).keys() == set(names[:20])
    assert cluster.now_s == 2 * ATTEMPT_S
    cluster.silent = set()
    cluster.now_s += LEFT_OUT_S
    assert ends.ask(cluster, names).keys() == set(names)


def test_a_topic_that_does_not_tell_its_end_is_left_out_for_a_while() -> None:
    cluster = Cluster("abc")
    cluster.silent = {"b"}
    ends = ends_of(cluster)
    seen: set[str] = set()
    for _ in range(4):  # each limit ends where the one topic has taken it
        seen |= ends.ask(cluster, "abc").keys()
    assert seen == {"a", "c"}
    before_s = cluster.now_s
    assert ends.ask(cluster, "abc").keys() == {"a", "c"}
    assert cluster.now_s == before_s
    cluster.silent = set()
    cluster.now_s += LEFT_OUT_S
    assert ends.ask(cluster, "abc").keys() == {"a", "b", "c"}


def test_that_no_broker_answers_is_an_error() -> None:
    cluster = Cluster("a")

    def away() -> dict[str, list[int]]:
        raise BrokerConnectionError("nobody")

    cluster.topics = away  # type: ignore[method-assign]
    with pytest.raises(BrokerConnectionError):
        ends_of(cluster).ask(cluster, "a")
