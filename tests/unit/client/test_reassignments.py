"""A client's reassignments: what it asks for, which refusals it repeats, what the answer says."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from headwater.logtier.client import cluster as cluster_module
from headwater.logtier.client.cluster import ClientConfig, ClusterClient
from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import BrokerConnectionError, BrokerError, UnsupportedVersionError
from headwater.logtier.client.messages import CLIENT_VERSIONS
from headwater.logtier.client.ongoing_reassignment import OngoingReassignment
from headwater.logtier.client.reassignments import (
    NO_REASSIGNMENT_IN_PROGRESS,
    alter_partition_reassignments,
    list_partition_reassignments,
)

UNKNOWN_TOPIC, NOT_CONTROLLER, DENIED, INVALID_ASSIGNMENT = 3, 41, 31, 39


class Controller:
    """Answers as scripted and notes what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any, version: int | None = None) -> None:
        self.answers = deque(answers)
        self.asked: list[Any] = []
        cluster: Any = ClusterClient(ClientConfig((("scripted", 1),)))
        cluster._metadata.brokers = {1: ("scripted", 1)}
        cluster.any_connection = lambda: SimpleNamespace(
            version=lambda key: CLIENT_VERSIONS[key][1] if version is None else version, call=self._call
        )
        self.cluster = cast(ClusterClient, cluster)
        monkeypatch.setattr(cluster_module, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None))

    def _call(self, request: Request[Any]) -> Any:
        schema = cast(Any, load_request_schema(request.api_key, request.api_version))
        self.asked.append(entity_reader(schema)(request.body, 0)[0])
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer


def altered(*partitions: tuple[str, int, int], code: int = 0) -> Any:
    topics = [
        SimpleNamespace(
            name=topic, partitions=[SimpleNamespace(partition_index=index, error_code=error, error_message="why")]
        )
        for topic, index, error in partitions
    ]
    return SimpleNamespace(error_code=code, error_message=None, responses=topics)


def test_partitions_are_reassigned_and_cancelled_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch, altered(("a", 0, 0), ("a", 1, NO_REASSIGNMENT_IN_PROGRESS)))
    results = alter_partition_reassignments(controller.cluster, {("a", 1): None, ("a", 0): [2, 3]})
    assert results[("a", 0)] is None
    refusal = results[("a", 1)]
    assert refusal is not None
    assert refusal.code == NO_REASSIGNMENT_IN_PROGRESS
    assert "reassigning a-1" in str(refusal)
    [asked] = controller.asked
    [topic] = asked.topics
    assert [(part.partition_index, part.replicas) for part in topic.partitions] == [(0, (2, 3)), (1, None)]
    assert asked.allow_replication_factor_change


def test_only_what_failed_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(
        monkeypatch,
        altered(code=NOT_CONTROLLER),
        BrokerConnectionError("gone"),
        altered(("a", 0, INVALID_ASSIGNMENT), ("b", 0, NOT_CONTROLLER), ("c", 0, UNKNOWN_TOPIC)),
        altered(("b", 0, 0)),
    )
    results = alter_partition_reassignments(controller.cluster, {("a", 0): [1], ("b", 0): [1], ("c", 0): [1]})
    codes = {key: error and error.code for key, error in results.items()}
    assert codes == {("a", 0): INVALID_ASSIGNMENT, ("b", 0): None, ("c", 0): UNKNOWN_TOPIC}
    assert [topic.name for topic in controller.asked[-1].topics] == ["b"]


def test_a_refusal_of_the_whole_request_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch, altered(code=DENIED))
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        alter_partition_reassignments(controller.cluster, {("a", 0): [1]})
    assert alter_partition_reassignments(controller.cluster, {}) == {}


def test_an_old_broker_cannot_be_asked_to_keep_the_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch, version=0)
    with pytest.raises(UnsupportedVersionError, match="replication factor"):
        alter_partition_reassignments(controller.cluster, {("a", 0): [1]}, allow_replication_factor_change=False)
    assert not controller.asked


@pytest.mark.parametrize("partitions", [None, [("a", 3)]])
def test_ongoing_reassignments_are_listed(
    partitions: list[tuple[str, int]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = SimpleNamespace(partition_index=3, replicas=(4, 2, 1), adding_replicas=(4,), removing_replicas=(1,))
    topic = SimpleNamespace(name="a", partitions=[part])
    answer = SimpleNamespace(error_code=0, error_message=None, topics=[topic])
    controller = Controller(monkeypatch, SimpleNamespace(error_code=NOT_CONTROLLER, error_message=None), answer)
    found = list_partition_reassignments(controller.cluster, partitions)
    assert found == {("a", 3): OngoingReassignment((4, 2, 1), (4,), (1,))}
    topics = controller.asked[-1].topics
    assert topics is None if partitions is None else topics[0].partition_indexes == (3,)
