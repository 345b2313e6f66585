"""Offsets of groups that another broker coordinates: through both codecs, and what counts as unknown."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, cast
from uuid import UUID

import pytest
from kio.index import load_response_schema

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import BrokerConnectionError
from headwater.logtier.cluster import remote_group_offsets
from headwater.logtier.cluster.remote_group_offsets import RemoteGroupOffsets
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.virtual_time import run_virtually

METADATA, OFFSET_FETCH = 3, 9
FLIGHTS, CARRIERS = uuid.UUID(int=1), uuid.UUID(int=2)
P0, P1, C0 = TopicPartition("flights", 0), TopicPartition("flights", 1), TopicPartition("carriers", 0)


class Coordinator:
    """Broker 2: the topics in its metadata, and what groups have committed; each request goes through both codecs."""

    def __init__(self) -> None:
        self.names: dict[UUID, str] = {FLIGHTS: "flights", CARRIERS: "carriers"}
        self.unknown_id_error = ErrorCode.unknown_topic_id
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        self.group_error = ErrorCode.none
        self.partition_error = ErrorCode.none
        self.is_away = False
        #: How many requests for offsets it answers.
        self.answers_max: int | None = None
        self.requests: list[Any] = []

    def send(self, broker_id: int, request: Request[Any], timeout_ms: int) -> asyncio.Future[Any]:
        assert broker_id == 2
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_away:
            future.set_exception(BrokerConnectionError("broker 2 is away"))
            return future
        header = messages.RequestHeader(request.api_key, request.api_version, 1, "broker", 0)
        asked: Any = messages.read_request(header, b"\0" + request.body)
        self.requests.append(asked)
        offset_requests = [each for each in self.requests if self.is_for_offsets(each)]
        if self.answers_max is not None and len(offset_requests) > self.answers_max:
            return future
        answer = self.metadata(asked) if request.api_key == METADATA else self.fetched(asked)
        body = messages.encode_response(request.api_key, request.api_version, answer)
        future.set_result(request.decode(memoryview(bytearray(body))))
        return future

    @staticmethod
    def is_for_offsets(request: Any) -> bool:
        return hasattr(request, "groups")

    def metadata(self, asked: Any) -> dict[str, Any]:
        assert not asked.allow_auto_topic_creation
        topics = [
            {
                "error_code": ErrorCode.none if each.topic_id in self.names else self.unknown_id_error,
                "name": self.names.get(each.topic_id),
                "topic_id": each.topic_id,
                "is_internal": False,
                "partitions": [],
                "topic_authorized_operations": -(2**31),
            }
            for each in asked.topics
        ]
        fields = load_response_schema(METADATA, 13).__dataclass_fields__
        common = {"brokers": [], "cluster_id": "c", "controller_id": 1, "error_code": ErrorCode.none, "topics": topics}
        return {name: value for name, value in common.items() if name in fields}

    def fetched(self, asked: Any) -> dict[str, Any]:
        groups = []
        for group in asked.groups:
            topics = [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": index,
                            "committed_offset": self.offsets.get(
                                (group.group_id, TopicPartition(topic.name, index)), -1
                            ),
                            "committed_leader_epoch": -1,
                            "metadata": "",
                            "error_code": self.partition_error,
                        }
                        for index in topic.partition_indexes
                    ],
                }
                for topic in group.topics
            ]
            groups.append({"group_id": group.group_id, "topics": topics, "error_code": self.group_error})
        return {"groups": groups}

    async def committed(self, wanted: dict[str, dict[TopicPartition, UUID]]) -> dict[str, dict[TopicPartition, int]]:
        found: dict[str, dict[TopicPartition, int]] = {}
        await RemoteGroupOffsets(cast("Any", self.send)).committed(2, wanted, found)
        return found


def test_the_offsets_of_all_groups_come_in_one_answer() -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        coordinator.offsets = {("a", P0): 5, ("a", C0): 0, ("b", P1): 7}
        wanted = {"a": {P0: FLIGHTS, P1: FLIGHTS, C0: CARRIERS}, "b": {P1: FLIGHTS}}
        assert await coordinator.committed(wanted) == {"a": {P0: 5, C0: 0}, "b": {P1: 7}}
        assert len(coordinator.requests) == 2

    run_virtually(scenario())


def test_a_topic_that_the_coordinator_knows_by_another_id_is_not_asked_for() -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        coordinator.offsets = {("a", P0): 5, ("a", C0): 6}
        del coordinator.names[FLIGHTS]
        assert await coordinator.committed({"a": {P0: FLIGHTS, C0: CARRIERS}}) == {"a": {C0: 6}}
        assert await coordinator.committed({"a": {P0: FLIGHTS}}) == {}

    run_virtually(scenario())


@pytest.mark.parametrize("where", ["group_error", "partition_error"])
def test_an_error_is_no_offset(where: str) -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        coordinator.offsets = {("a", P0): 5}
        setattr(coordinator, where, ErrorCode.not_coordinator)
        assert await coordinator.committed({"a": {P0: FLIGHTS}}) == {"a": {}}

    run_virtually(scenario())


def test_a_coordinator_that_is_away_leaves_all_unknown() -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        coordinator.is_away = True
        assert await coordinator.committed({"a": {P0: FLIGHTS}}) == {}

    run_virtually(scenario())


def test_many_partitions_are_asked_for_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_group_offsets, "PARTITIONS_PER_REQUEST_MAX", 2)

    async def scenario() -> None:
        coordinator = Coordinator()
        coordinator.offsets = {("a", P0): 5, ("a", P1): 6, ("a", C0): 7}
        assert await coordinator.committed({"a": {P0: FLIGHTS, P1: FLIGHTS, C0: CARRIERS}}) == {
            "a": {P0: 5, P1: 6, C0: 7}
        }
        assert [coordinator.is_for_offsets(each) for each in coordinator.requests] == [False, True, True]

    run_virtually(scenario())


def test_what_came_before_a_broker_went_silent_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_group_offsets, "PARTITIONS_PER_REQUEST_MAX", 1)

    async def scenario() -> None:
        coordinator = Coordinator()
        coordinator.offsets = {("a", P0): 5, ("a", P1): 6}
        coordinator.answers_max = 1
        found: dict[str, dict[TopicPartition, int]] = {}
        asking = RemoteGroupOffsets(cast("Any", coordinator.send)).committed(
            2, {"a": {P0: FLIGHTS, P1: FLIGHTS}}, found
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asking, 10)
        assert found == {"a": {P0: 5}}

    run_virtually(scenario())


def test_topics_are_asked_for_once_a_pass_and_a_few_in_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_group_offsets, "TOPICS_PER_REQUEST_MAX", 2)

    async def scenario() -> None:
        coordinator = Coordinator()
        ids = [uuid.UUID(int=number) for number in range(10, 15)]
        coordinator.names = {topic_id: f"topic-{topic_id.int}" for topic_id in ids}
        wanted = {
            group: {TopicPartition(name, 0): topic_id for topic_id, name in coordinator.names.items()}
            for group in ("a", "b")
        }
        coordinator.offsets = {(group, key): 7 for group, keys in wanted.items() for key in keys}
        assert await coordinator.committed(wanted) == {group: dict.fromkeys(keys, 7) for group, keys in wanted.items()}
        *for_names, for_offsets = coordinator.requests
        assert coordinator.is_for_offsets(for_offsets)
        assert [[each.topic_id for each in request.topics] for request in for_names] == [ids[:2], ids[2:4], ids[4:]]

    run_virtually(scenario())


def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        coordinator.group_error = ErrorCode.group_authorization_failed
        offsets = RemoteGroupOffsets(cast("Any", coordinator.send))
        for _ in range(2):
            await offsets.committed(2, {"a": {P0: FLIGHTS}}, {})

    run_virtually(scenario())
    [record] = caplog.records
    assert "broker 2 refuses the offsets of group 'a'" in record.getMessage()
    assert "add the principal to super.users" in record.getMessage()


def test_a_topic_that_this_broker_may_not_describe_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        offsets = RemoteGroupOffsets(cast("Any", coordinator.send))
        del coordinator.names[FLIGHTS]
        await offsets.committed(2, {"a": {P0: FLIGHTS}}, {})
        assert caplog.records == [], "a topic that the coordinator does not know is not refused"
        coordinator.unknown_id_error = ErrorCode.topic_authorization_failed
        for _ in range(2):
            await offsets.committed(2, {"a": {P0: FLIGHTS, P1: FLIGHTS}}, {})

    run_virtually(scenario())
    [record] = caplog.records
    assert "broker 2 refuses the id of topic 'flights'" in record.getMessage()
    assert "add the principal to super.users" in record.getMessage()
