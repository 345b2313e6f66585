"""Last known leaders, as the client reads them from a broker's DescribeTopicPartitions."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from headwater.logtier.client.connection import Request
from headwater.logtier.client.coordinators import last_known_leaders
from headwater.logtier.client.errors import UnsupportedVersionError
from headwater.logtier.client.messages import negotiate
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.topics import describe_topic_partitions
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage, chunk_path, encode_chunk, encode_topic
from headwater.logtier.protocol import messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.logtier.client.cluster import ClusterClient
    from tests.unit.reading.conftest import World

KEY = describe_topic_partitions.API_KEY


class Connection:
    """Hands a client's requests to the handler, byte for byte."""

    def __init__(self, world: World, versions: dict[int, tuple[int, int]]) -> None:
        self._world = world
        self._versions = versions
        self.calls = 0

    def any_connection(self) -> Connection:
        return self

    def retry(self, what: str, attempt: Callable[[], Any]) -> Any:
        assert what
        return attempt()

    def version(self, api_key: int) -> int:
        return negotiate(api_key, self._versions)

    def call(self, request: Request[Any]) -> Any:
        self.calls += 1
        read = messages.read_request(messages.RequestHeader(KEY, 0, 1, "tester", 0), b"\0" + request.body)
        context = RequestContext(self._world.services, KEY, 0, 1, "tester", "127.0.0.1", "User:ANONYMOUS")
        answer = describe_topic_partitions.handle(read, context)
        return request.decode(memoryview(messages.encode_response(KEY, 0, answer)))


def asked(connection: Connection, *topics: str) -> dict[tuple[str, int], int]:
    return last_known_leaders(cast("ClusterClient", connection), topics)


def change(world: World, name: str, *partitions: PartitionImage) -> None:
    world._change(
        [
            (paths.topic_path(name), encode_topic(uuid.uuid5(uuid.NAMESPACE_DNS, name), len(partitions))),
            (chunk_path(name, 0), encode_chunk(partitions)),
        ]
    )


def state(leader: int, last_known_leader: int) -> PartitionImage:
    return PartitionImage(leader, 0, 0, (2, 3), (2, 3), last_known_leader=last_known_leader)


@pytest.mark.parametrize(("page", "calls"), [(1, 6), (2, 3), (2000, 1)])
def test_they_are_read_page_by_page_with_or_without_a_leader(world: World, page: int, calls: int) -> None:
    change(world, "__consumer_offsets", state(2, NO_BROKER), state(3, 2), state(NO_BROKER, 3))
    change(world, "__transaction_state", state(2, 3), state(2, NO_BROKER))
    world.metadata.config = replace(world.config, max_request_partition_size_limit=page)
    connection = Connection(world, {KEY: (0, 0)})
    assert asked(connection, "__consumer_offsets", "__transaction_state", "missing") == {
        ("__consumer_offsets", 1): 2,
        ("__consumer_offsets", 2): 3,
        ("__transaction_state", 0): 3,
    }
    assert connection.calls == calls


def test_a_kafka_that_has_none_is_reported_as_such(world: World) -> None:
    with pytest.raises(UnsupportedVersionError, match="does not offer DescribeTopicPartitions"):
        asked(Connection(world, {}), "__consumer_offsets")
