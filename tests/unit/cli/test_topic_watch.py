"""What becomes of a topic while it is read, as its descriptions come in."""

from __future__ import annotations

import threading

import pytest

from headwater.api.topic_model import ErrorCode, PartitionInfo, TopicAdminError, TopicInfo
from headwater.cli.messages.topic_watch import MISSES_BEFORE_GONE, TopicGoneError, TopicWatch


def topic(partitions: int, topic_id: str = "a") -> TopicInfo:
    return TopicInfo("t", topic_id, False, tuple(PartitionInfo(number, 0, (0,), (0,)) for number in range(partitions)))


class Broker:
    """Answers with what a test put in, one after the other; `done` is set when all were asked for."""

    def __init__(self, *answers: TopicInfo | ErrorCode) -> None:
        self.answers = list(answers)
        self.done = threading.Event()

    def describe(self, name: str) -> TopicInfo:
        if not self.answers:
            self.done.set()
            raise TopicAdminError(ErrorCode.UNAVAILABLE, "gone")
        answer = self.answers.pop(0)
        if isinstance(answer, TopicInfo):
            return answer
        raise TopicAdminError(answer, name)


def watched(*answers: TopicInfo | ErrorCode) -> TopicWatch:
    """A watch of a topic with one partition that has heard all answers."""
    broker = Broker(*answers)
    with TopicWatch(topic(1), broker.describe, interval_s=0) as watch:
        assert broker.done.wait(30)
    return watch


def test_added_partitions_are_told_once() -> None:
    watch = watched(topic(1), topic(3))
    assert watch.added_partitions() == {1, 2}
    assert watch.added_partitions() == frozenset()


def test_a_broker_that_is_away_or_slow_changes_nothing() -> None:
    assert watched(ErrorCode.UNAVAILABLE, ErrorCode.TIMED_OUT).added_partitions() == frozenset()


def test_a_topic_that_one_look_misses_is_still_there() -> None:
    assert watched(ErrorCode.UNKNOWN_TOPIC, topic(1), ErrorCode.UNKNOWN_TOPIC).added_partitions() == frozenset()


def test_a_topic_that_is_gone_is_an_error() -> None:
    watch = watched(*[ErrorCode.UNKNOWN_TOPIC] * MISSES_BEFORE_GONE)
    with pytest.raises(TopicGoneError, match="'t' was deleted"):
        watch.added_partitions()


def test_another_topic_of_the_same_name_is_an_error() -> None:
    watch = watched(topic(3, "b"))
    with pytest.raises(TopicGoneError, match="created again"):
        watch.added_partitions()
