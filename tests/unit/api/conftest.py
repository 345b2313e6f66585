"""The REST application over a cluster in memory, and a client that calls it without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from headwater.api.app import create_app
from headwater.api.topic_admin import (
    BrokerInfo,
    ClusterInfo,
    ConfigChange,
    ConfigValue,
    ErrorCode,
    PartitionInfo,
    TopicAdmin,
    TopicAdminError,
    TopicInfo,
    TopicRequest,
)
from headwater.api.topic_model import validate_changes, validate_request, validate_topic_name

CLUSTER = "cluster-1"
BROKER = 7
DEFAULTS = {"retention.ms": "604800000", "cleanup.policy": "delete"}


class InMemoryTopicAdmin(TopicAdmin):
    """Topics in a dictionary, with the checks and error codes of the real one."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.topics: dict[str, TopicInfo] = {}
        self.overrides: dict[str, dict[str, str]] = {}
        self.failure: Exception | None = None

    def cluster(self) -> ClusterInfo:
        if self.failure is not None:
            raise self.failure
        return ClusterInfo(CLUSTER, BROKER, (BrokerInfo(BROKER, "localhost", 9092, None),))

    def list_topics(self) -> list[TopicInfo]:
        if self.failure is not None:
            raise self.failure
        return [self.topics[name] for name in sorted(self.topics)]

    def describe_topic(self, name: str) -> TopicInfo:
        validate_topic_name(name)
        if name not in self.topics:
            raise TopicAdminError(ErrorCode.UNKNOWN_TOPIC, f"describe topic {name!r}: there is no such topic")
        return self.topics[name]

    def create_topic(self, request: TopicRequest, *, validate_only: bool = False) -> TopicInfo | None:
        validate_request(request)
        if request.name in self.topics:
            raise TopicAdminError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {request.name!r} already exists.")
        if validate_only:
            return None
        self.topics[request.name] = TopicInfo(request.name, "id", False, _partitions(request.partitions_count or 1))
        self.overrides[request.name] = dict(request.configs or {})
        return self.topics[request.name]

    def delete_topics(self, names: Sequence[str]) -> None:
        for name in names:
            self.describe_topic(name)
            del self.topics[name]

    def create_partitions(self, name: str, partitions_count: int, *, validate_only: bool = False) -> TopicInfo:
        topic = self.describe_topic(name)
        if partitions_count <= topic.partitions_count:
            raise TopicAdminError(ErrorCode.INVALID_PARTITIONS, "a count can only grow")
        if not validate_only:
            self.topics[name] = replace(topic, partitions=_partitions(partitions_count))
        return self.topics[name]

    def configs_of(self, names: Sequence[str]) -> dict[str, list[ConfigValue]]:
        answers = {}
        for name in names:
            self.describe_topic(name)
            set_here = self.overrides[name]
            answers[name] = [
                ConfigValue(
                    key,
                    value,
                    "DYNAMIC_TOPIC_CONFIG" if key in set_here else "DEFAULT_CONFIG",
                    key not in set_here,
                    False,
                    False,
                )
                for key, value in sorted((DEFAULTS | set_here).items())
            ]
        return answers

    def alter_configs(self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False) -> None:
        self.describe_topic(name)
        validate_changes(changes)
        for change in changes:
            if change.name not in DEFAULTS:
                raise TopicAdminError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {change.name}")
        if validate_only:
            return
        for change in changes:
            self.overrides[name].pop(change.name, None)
            if change.value is not None:
                self.overrides[name][change.name] = change.value


def _partitions(count: int) -> tuple[PartitionInfo, ...]:
    return tuple(PartitionInfo(number, BROKER, (BROKER,), (BROKER,)) for number in range(count))


class Client:
    """Calls the application; one request, one answer."""

    def __init__(self, admin: InMemoryTopicAdmin, body_bytes_max: int = 1 << 20) -> None:
        self.admin = admin
        self.app = create_app(admin, body_bytes_max, hosts=("headwater",))

    def call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            # A fault of the application must become an answer, not an exception here.
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://headwater:8082") as client:
                return await client.request(method, path, **arguments)

        return asyncio.run(send())

    def topics(self, method: str, path: str = "", **arguments: Any) -> httpx.Response:
        """Calls below the cluster's topics."""
        return self.call(method, f"/v3/clusters/{CLUSTER}/topics{path}", **arguments)


@pytest.fixture
def client() -> Client:
    """The application over an empty cluster."""
    return Client(InMemoryTopicAdmin())
