"""How a pipeline's missing topics are requested."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headwater.api.topic_model import ErrorCode, TopicAdminError, TopicRequest
from headwater.cli.pipeline.topic_creation import topics_creator
from headwater.pipelines.definition.plan import TopicPlan


class Admin:
    """Has topics, and notes which are created."""

    def __init__(self, *names: str, error: ErrorCode | None = None) -> None:
        self.topics = [SimpleNamespace(name=name, partitions_count=1) for name in names]
        self.created: list[TopicRequest] = []
        self._error = error

    def list_topics(self) -> list[Any]:
        return self.topics

    def create_topic(self, request: TopicRequest) -> None:
        self.created.append(request)
        if self._error is not None:
            raise TopicAdminError(self._error, f"create topic {request.name!r}")


def plan(name: str, replication_factor: int | None, **configs: str) -> TopicPlan:
    return TopicPlan(name, 4, "json", "", configs, replication_factor)


def test_a_declared_replication_factor_is_that_of_the_new_topic_with_its_configs() -> None:
    admin = Admin()
    topics_creator(admin)([plan("flights", 3, **{"min.insync.replicas": "2"})])
    assert admin.created == [TopicRequest("flights", 4, 3, {"min.insync.replicas": "2"})]


def test_without_a_replication_factor_the_brokers_default_stays() -> None:
    admin = Admin()
    topics_creator(admin)([plan("flights", None)])
    assert admin.created == [TopicRequest("flights", 4, None, None)]


def test_a_topic_that_exists_is_not_created(capsys: pytest.CaptureFixture[str]) -> None:
    admin = Admin("flights")
    topics_creator(admin)([plan("flights", 3)])
    assert admin.created == []
    assert "has 1 partitions, the pipeline says 4" in capsys.readouterr().err


def test_a_factor_that_the_cluster_refuses_fails_and_a_topic_that_another_run_made_does_not() -> None:
    topics_creator(Admin(error=ErrorCode.TOPIC_ALREADY_EXISTS))([plan("flights", 3)])
    with pytest.raises(TopicAdminError, match="create topic 'flights'"):
        topics_creator(Admin(error=ErrorCode.INVALID_REPLICATION_FACTOR))([plan("flights", 9)])
