"""An archive's group commits offsets of the topic that it archives, and of no successor of the same name."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import cast

import pytest

from headwater.logtier.client.cluster import ClusterClient, TopicPartition
from headwater.logtier.client.errors import RequestTimeoutError
from headwater.pipelines.archive.archive_group import RETRY_S, ArchiveGroup
from headwater.pipelines.archive.trailing_offsets import COMMITTED_AGAIN_S

GRACE_S = 600.0
OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


class Cluster:
    """Answers with the metadata of one topic, and keeps what is committed."""

    def __init__(self) -> None:
        self.present = OLD
        self.known: uuid.UUID | None = None
        self.commits: list[dict[int, int]] = []
        self.attempts = 0
        self.is_away = False

    @property
    def client(self) -> ClusterClient:
        return cast("ClusterClient", self)

    def partitions(self, topic: str) -> list[int]:
        self.known = self.present
        return [0]

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """That of the metadata that were asked for last."""
        return self.known

    def commit(self, cluster: ClusterClient, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        assert (cluster, group) == (self.client, "headwater.archive.flights")
        self.attempts += 1
        if self.is_away:
            raise RequestTimeoutError("no coordinator")
        self.commits.append({partition: end for (_, partition), end in offsets.items()})


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def group(cluster: Cluster, clock: Clock) -> ArchiveGroup:
    made = ArchiveGroup("flights", GRACE_S, clock=clock, commit=cluster.commit)
    made.of_topic(str(OLD))
    return made


def test_what_the_table_had_a_grace_ago_is_committed(group: ArchiveGroup, cluster: Cluster, clock: Clock) -> None:
    group.noted({0: 5}, clock.now_s)
    group.commit(cluster.client)
    assert cluster.commits == []
    clock.now_s += GRACE_S
    before = group.passed
    group.commit(cluster.client)
    group.commit(cluster.client)
    assert cluster.commits == [{0: 5}]
    group.noted({0: 9}, clock.now_s)
    after = group.passed
    group.forget()
    assert (before, after, group.passed) == (None, {0: 5}, None), "what it has committed"


def test_offsets_of_a_topic_that_was_made_anew_are_never_committed(
    group: ArchiveGroup, cluster: Cluster, clock: Clock
) -> None:
    group.noted({0: 5}, clock.now_s)
    cluster.present = NEW
    for _ in range(3):
        clock.now_s += max(GRACE_S, COMMITTED_AGAIN_S)
        group.commit(cluster.client)
    assert cluster.commits == []


def test_offsets_that_were_committed_are_not_repeated_for_a_topic_that_was_made_anew(
    group: ArchiveGroup, cluster: Cluster, clock: Clock
) -> None:
    group.noted({0: 5}, clock.now_s - GRACE_S)
    group.commit(cluster.client)
    cluster.present = NEW
    clock.now_s += COMMITTED_AGAIN_S
    group.commit(cluster.client)
    assert cluster.commits == [{0: 5}]
    group.of_topic(str(NEW))
    group.commit(cluster.client)
    group.noted({0: 1}, clock.now_s - GRACE_S)
    group.commit(cluster.client)
    assert cluster.commits == [{0: 5}, {0: 1}]


def test_what_a_deleted_topic_had_is_forgotten(group: ArchiveGroup, cluster: Cluster, clock: Clock) -> None:
    group.noted({0: 5}, clock.now_s - GRACE_S)
    group.forget()
    group.commit(cluster.client)
    assert cluster.commits == []


def test_a_new_table_lets_the_group_go_back_at_once(group: ArchiveGroup, cluster: Cluster, clock: Clock) -> None:
    group.noted({0: 5}, clock.now_s - GRACE_S)
    group.noted({0: 9}, clock.now_s - 1)
    group.commit(cluster.client)
    group.begin(cluster.client, {0: 2})
    clock.now_s += GRACE_S
    group.commit(cluster.client)
    assert cluster.commits == [{0: 5}, {0: 2}], "and what the table before it had is never committed again"
    group.noted({0: 4}, clock.now_s - GRACE_S)
    group.commit(cluster.client)
    assert cluster.commits[-1] == {0: 4}


def test_a_coordinator_that_is_away_is_not_asked_at_each_look(
    group: ArchiveGroup, cluster: Cluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.is_away = True
    group.noted({0: 5}, clock.now_s - GRACE_S)
    for _ in range(100):
        group.commit(cluster.client)
        clock.now_s += 1
    assert cluster.attempts == 5, "after 5, 15, 35 and 75 seconds"
    assert len(caplog.records) == 1
    cluster.is_away = False
    clock.now_s += 1000
    group.commit(cluster.client)
    assert cluster.commits == [{0: 5}]
    cluster.is_away = True
    group.begin(cluster.client, {0: 0})
    cluster.is_away = False
    group.commit(cluster.client)
    assert len(cluster.commits) == 1
    clock.now_s += RETRY_S
    group.commit(cluster.client)
    assert cluster.commits == [{0: 5}, {0: 0}]


def test_a_clock_that_is_set_back_does_not_keep_the_group_waiting(
    group: ArchiveGroup, cluster: Cluster, clock: Clock
) -> None:
    group.begin(cluster.client, {0: 3})
    cluster.is_away = True
    group.begin(cluster.client, {0: 2})
    cluster.is_away = False
    clock.now_s -= 50_000
    group.commit(cluster.client)
    assert cluster.commits == [{0: 3}, {0: 2}]
