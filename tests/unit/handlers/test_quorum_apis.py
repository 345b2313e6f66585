"""DescribeQuorum, AddRaftVoter and RemoveRaftVoter: what a controller that is alone says of itself."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from headwater.logtier.config import BrokerConfig
from headwater.logtier.config.listeners import parse_listener
from headwater.logtier.controller.bootstrap import bootstrap
from headwater.logtier.controller.controller import Controller, NewTopic
from headwater.logtier.handlers.cluster import (
    add_raft_voter,
    describe_quorum,
    remove_raft_voter,
)
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataCache
from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.refusals import refusal
from headwater.logtier.protocol.uuids import to_text
from headwater.logtier.runtime.disk import RealDisk
from headwater.logtier.runtime.random_bytes import system_random_bytes
from headwater.logtier.security.operations import AclOperation, ResourceType

some = SimpleNamespace
METADATA = {describe_quorum.METADATA_TOPIC: (0,)}
NOW_MS = 1_700_000_000_000
DIRECTORY_ID = uuid.UUID("8a1f6a0e-2c1b-4d7e-9f10-aabbccddeeff")
LISTENERS = [
    parse_listener("listeners", text) for text in ("PLAINTEXT://broker.example.com:9092", "SSL://10.0.0.1:9093")
]


class Denying:
    def __init__(self, operation: AclOperation) -> None:
        self.operation = operation

    def is_authorized(self, principal: str, host: str, operation: Any, resource_type: Any, name: str) -> bool:
        return (operation, resource_type) != (self.operation, ResourceType.cluster)


class World:
    """A controller over a real store, and what the handlers see of its broker."""

    def __init__(self, controller: Controller, cache: MetadataCache) -> None:
        self.controller = controller
        self.services: Any = some(
            clock=some(now_ms=lambda: NOW_MS),
            metadata=cache,
            controller=controller,
            replica_manager=some(log_dirs=some(metadata_directory_id=to_text(DIRECTORY_ID))),
            authorizer=None,
        )

    def send(self, handler: ModuleType, version: int, **request: Any) -> Any:
        """One request; its answer as a client of that version reads it."""
        context = RequestContext(self.services, handler.API_KEY, version, 1, "client", "10.0.0.1", "User:a")
        try:
            answer = handler.handle(some(**request), context)
        except KafkaError as error:
            answer = refusal(handler.API_KEY, version, error.code, error.message)
        body = messages.encode_response(handler.API_KEY, version, answer)
        response, size = entity_reader(load_response_schema(handler.API_KEY, version))(body, 0)
        assert size == len(body)
        return response

    def describe(self, version: int = 2, partitions: Mapping[str, tuple[int, ...]] = METADATA) -> Any:
        topics = tuple(
            some(topic_name=name, partitions=tuple(some(partition_index=index) for index in indexes))
            for name, indexes in partitions.items()
        )
        return self.send(describe_quorum, version, topics=topics)


def run(directory: Path, *scenarios: Callable[[World], Awaitable[None]]) -> None:
    """Each scenario on a controller of its own: a restart between them."""

    async def main() -> None:
        for scenario in scenarios:
            config = BrokerConfig.from_properties({"node.id": 7})
            store = LocalMetadataStore(str(directory), RealDisk())
            await store.start()
            cache = MetadataCache(config)
            follower = MetadataFollower(store, cache)
            controller = Controller(config, some(now_ms=lambda: NOW_MS), random.Random(1), store, follower)
            await bootstrap(store, random.Random(1), system_random_bytes)
            await follower.start()
            await controller.start()
            await controller.register_broker(7, "here", 9092, None, LISTENERS)
            try:
                await scenario(World(controller, cache))
            finally:
                await controller.stop()
                await follower.stop()
                await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_controller_leads_and_is_the_only_voter(tmp_path: Path, version: int) -> None:
    async def scenario(world: World) -> None:
        response = world.describe(version)
        assert response.error_code == ErrorCode.none
        [topic] = response.topics
        [partition] = topic.partitions
        assert (topic.topic_name, partition.partition_index) == ("__cluster_metadata", 0)
        assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (ErrorCode.none, 7, 1)
        [voter] = partition.current_voters
        assert partition.observers == ()
        assert (voter.replica_id, voter.log_end_offset) == (7, partition.high_watermark)
        if version >= 1:
            assert (voter.last_fetch_timestamp, voter.last_caught_up_timestamp) == (NOW_MS, NOW_MS)
        if version >= 2:
            assert voter.replica_directory_id == DIRECTORY_ID
            [node] = response.nodes
            assert node.node_id == 7
            assert [(each.name, each.host, each.port) for each in node.listeners] == [
                ("PLAINTEXT", "broker.example.com", 9092),
                ("SSL", "10.0.0.1", 9093),
            ]

    run(tmp_path, scenario)


def test_each_change_of_metadata_moves_the_high_watermark_and_each_start_the_epoch(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    async def scenario(world: World) -> None:
        for name in (f"a-{len(seen)}", f"b-{len(seen)}"):
            [result] = await world.controller.create_topics([NewTopic(name, 1, 1)])
            assert result.error is None
            [partition] = world.describe().topics[0].partitions
            seen.append((partition.leader_epoch, partition.high_watermark))

    run(tmp_path, scenario, scenario)
    (first, one), (_, two), (second, three), (_, four) = seen
    assert (first, second) == (1, 2)
    # The new epoch is a change, and so is the return of the broker.
    assert (two, three, four) == (one + 1, two + 3, three + 1)


@pytest.mark.parametrize(
    "partitions",
    [
        {"__cluster_metadata": (1,)},
        {"__cluster_metadata": (0, 0)},
        {"__cluster_metadata": ()},
        {"orders": (0, 3)},
        {"__cluster_metadata": (0,), "orders": (0,)},
    ],
)
def test_whatever_is_not_the_partition_of_metadata_is_not_known(
    tmp_path: Path, partitions: dict[str, tuple[int, ...]]
) -> None:
    async def scenario(world: World) -> None:
        response = world.describe(partitions=partitions)
        assert response.error_code == ErrorCode.none
        found = {
            topic.topic_name: tuple(part.partition_index for part in topic.partitions) for topic in response.topics
        }
        assert found == partitions
        codes = {part.error_code for topic in response.topics for part in topic.partitions}
        assert codes <= {ErrorCode.unknown_topic_or_partition}
        assert not response.nodes

    run(tmp_path, scenario)


def test_a_broker_that_is_not_the_controller_does_not_lead(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.services.metadata = some(image=world.services.metadata.image, config=some(node_id=8))
        [partition] = world.describe().topics[0].partitions
        assert partition.error_code == ErrorCode.not_leader_or_follower
        assert partition.leader_id == -1

    run(tmp_path, scenario)


def test_a_controller_that_is_not_registered_yet_is_asked_again(tmp_path: Path) -> None:
    """Clients retry NOT_LEADER_OR_FOLLOWER; the nodes of the answer would lack the leader."""

    async def scenario(world: World) -> None:
        image = replace(world.services.metadata.image, brokers={})
        world.services.metadata = some(image=image, config=world.services.metadata.config)
        response = world.describe()
        [partition] = response.topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (ErrorCode.not_leader_or_follower, -1)
        assert not response.nodes

    run(tmp_path, scenario)


VOTER = {"cluster_id": None, "voter_id": 8, "voter_directory_id": DIRECTORY_ID}
ENDPOINTS = (some(name="CONTROLLER", host="other", port=9093),)


@pytest.mark.parametrize(("handler", "verb"), [(add_raft_voter, "adding"), (remove_raft_voter, "removing")])
def test_voters_are_not_changed_here(tmp_path: Path, handler: ModuleType, verb: str) -> None:
    async def scenario(world: World) -> None:
        def refused(**other: Any) -> tuple[ErrorCode, str]:
            response = world.send(handler, 0, **VOTER | {"listeners": ENDPOINTS} | other)
            return response.error_code, response.error_message

        cluster_id = world.services.metadata.image.cluster_id
        unsupported = (
            ErrorCode.unsupported_version,
            f"Cluster doesn't support {verb} voter because the kraft.version feature is 0",
        )
        assert refused() == unsupported
        assert refused(cluster_id=cluster_id) == unsupported
        assert refused(cluster_id="another")[0] == ErrorCode.inconsistent_cluster_id
        for wrong in ({"voter_id": -1}, {"voter_directory_id": None}):
            code, message = refused(**wrong)
            assert code == ErrorCode.invalid_request
            assert "didn't include a valid voter" in message
        if handler is add_raft_voter:
            assert refused(listeners=())[0] == ErrorCode.invalid_request

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("handler", "operation"),
    [
        (describe_quorum, AclOperation.describe),
        (add_raft_voter, AclOperation.alter),
        (remove_raft_voter, AclOperation.alter),
    ],
)
def test_the_quorum_is_the_clusters_own(tmp_path: Path, handler: ModuleType, operation: AclOperation) -> None:
    async def scenario(world: World) -> None:
        world.services.authorizer = Denying(operation)
        response = world.send(handler, handler.VERSIONS[1], topics=(), listeners=ENDPOINTS, **VOTER)
        assert response.error_code == ErrorCode.cluster_authorization_failed

    run(tmp_path, scenario)
