"""The list of topics: asked when it may have changed, and not for each word."""

from __future__ import annotations

import pytest

from headwater.pipelines.sql.topic_names import KEPT_S, UNREACHABLE_KEPT_S, AmbiguousTopicError, TopicNames


class Cluster:
    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.asked = 0
        self.now = 0.0
        self.fails = False
        self.topics = TopicNames(self._list, lambda: self.now)

    def _list(self) -> list[str]:
        self.asked += 1
        if self.fails:
            raise OSError("no broker answers")
        return self.names


def test_the_list_is_kept_for_a_moment_and_asked_anew_for_a_certain_name() -> None:
    cluster = Cluster("flights")
    assert cluster.topics.match("FLIGHTS") == "flights"
    cluster.names = ["flights", "delays"]
    assert cluster.topics.match("delays") is None
    assert cluster.asked == 1
    assert cluster.topics.match("delays", anew=True) == "delays"
    assert cluster.asked == 2
    cluster.names = []
    cluster.now += KEPT_S
    assert cluster.topics.match("flights") is None


def test_nothing_is_asked_before_a_name_is_matched() -> None:
    cluster = Cluster(*(f"t{n}" for n in range(5_000)))
    assert (cluster.topics.last(), cluster.asked) == ((), 0)


def test_a_broker_that_does_not_answer_is_not_asked_at_once_again() -> None:
    cluster = Cluster("flights")
    cluster.fails = True
    for anew in (False, True):
        with pytest.raises(OSError, match="no broker answers"):
            cluster.topics.match("flights", anew=anew)
    assert cluster.asked == 1
    cluster.fails = False
    cluster.now += UNREACHABLE_KEPT_S
    assert cluster.topics.match("flights") == "flights"


def test_case_matters_only_between_topics_that_differ_in_nothing_else() -> None:
    cluster = Cluster("Flights", "flights", "delays")
    assert cluster.topics.match("Flights") == "Flights"
    assert cluster.topics.match("DELAYS") == "delays"
    with pytest.raises(AmbiguousTopicError, match="Flights and flights"):
        cluster.topics.match("FLIGHTS")


def test_internal_topics_are_not_suggested() -> None:
    cluster = Cluster("__flights", "delays")
    cluster.topics.all()
    assert cluster.topics.near("flights") == ""
    assert cluster.topics.near("delay") == "did you mean 'delays'?"
