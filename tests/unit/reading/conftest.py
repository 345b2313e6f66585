"""A broker's replicas behind their handlers, asked as a connection asks: through kio's writer and reader."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast, get_args, get_origin

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.controller.feature_state import FeatureUpdate, plan_update_features
from headwater.logtier.controller.leader_elections import LeaderElectionResult, plan_elect_leaders
from headwater.logtier.controller.live_brokers import LiveBrokers
from headwater.logtier.controller.reassignments import ReassignmentResult, WantedReplicas, plan_reassignments
from headwater.logtier.handlers.context import RequestContext, Services
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.log.reading import LogSlice
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataCache, MetadataImage, metadata_delta
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.features import SUPPORTED_FEATURES
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.replication.fetch_session import FetchSessionCache
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.disk import RealDisk
from headwater.logtier.runtime.network import FileSlice
from headwater.logtier.security.operations import AclOperation, ResourceType
from tests.manual_clock import ManualClock
from tests.topic_images import topic_changes, topic_deletion

CORRELATION_ID = 77
NOW_MS = 1_700_000_000_000
FLIGHTS, AIRPORTS, COUNTS = uuid.UUID(int=5), uuid.UUID(int=6), uuid.UUID(int=7)


class Denying:
    """Forbids operations on names."""

    def __init__(self, *denied: tuple[AclOperation, ResourceType, str]) -> None:
        self.denied = denied

    def is_authorized(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        return (operation, resource_type, name) not in self.denied

    def is_authorized_for_any(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        return True


class PlanningController:
    """Plans elections, feature levels and reassignments on the image of the services, and stores nothing."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def elect_leaders(
        self, asked: Sequence[TopicPartition] | None, *, is_unclean: bool
    ) -> list[LeaderElectionResult]:
        image = self._services.metadata.image
        return plan_elect_leaders(image, asked, lambda _: 1, LiveBrokers(image, {}), is_unclean=is_unclean).results

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        del validate_only
        plan_update_features(self._services.metadata.image.features, updates, {1: SUPPORTED_FEATURES})

    async def alter_reassignments(
        self, asked: Sequence[WantedReplicas], *, may_change_factor: bool
    ) -> list[ReassignmentResult]:
        image = self._services.metadata.image
        brokers = LiveBrokers(image, {})
        return plan_reassignments(image, asked, lambda _: 1, brokers, may_change_factor=may_change_factor).results


class World:
    """Topics flights (2 partitions), airports (1) and counts (1, compacted), and a client of theirs."""

    def __init__(self, path: Path) -> None:
        self.config = BrokerConfig.from_properties({"log.dirs": [str(path)], "node.id": 1})
        self.clock = ManualClock(NOW_MS)
        logs = LogManager(self.config, RealDisk(), self.clock, random.Random(1))
        logs.start()
        self.replicas = ReplicaManager(
            1,
            lambda topic: TopicConfig.resolve(topic.configs, self.config),
            logs,
            self.clock,
            lambda delay, call: asyncio.get_running_loop().call_later(delay, call),
        )
        self.image = MetadataImage()
        self.metadata = SimpleNamespace(image=self.image, static_config=self.config, config=self.config)
        nobody: Any = None
        self.services = Services(
            self.clock,
            random.Random(1),
            cast("MetadataCache", self.metadata),
            nobody,
            self.replicas,
            nobody,
            nobody,
            nobody,
            nobody,
            fetch_sessions=FetchSessionCache(2, random.Random(1)),
        )
        self.services.controller = cast("Any", PlanningController(self.services))
        self.create("flights", FLIGHTS, 2)
        self.create("airports", AIRPORTS, 1)
        self.create("counts", COUNTS, 1, {"cleanup.policy": "compact"})

    def create(self, name: str, topic_id: uuid.UUID, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        self._change(
            [
                *topic_changes(name, topic_id, [(1,)] * partitions),
                (paths.topic_config_path(name), paths.encode_config(configs) if configs else None),
            ]
        )

    def delete(self, name: str) -> None:
        self._change(topic_deletion(self.image, name))

    def _change(self, changes: list[tuple[str, bytes | None]]) -> None:
        before, self.image = self.image, self.image.apply(changes)
        self.metadata.image = self.image
        self.replicas.apply(metadata_delta(before, self.image))

    def append(self, topic: str, partition: int, *values: bytes, timestamp_ms: int = NOW_MS) -> None:
        batch = build_batch([Record(b"key", value, timestamp_ms) for value in values])
        self.replicas.append(TopicPartition(topic, partition), batch)

    def ask(self, handler: ModuleType, version: int, **fields: Any) -> Any:
        """The answer to one request, as the client's reader sees it."""
        return asyncio.run(self.answer(handler, version, **fields))

    async def answer(self, handler: ModuleType, version: int, **fields: Any) -> Any:
        key = handler.API_KEY
        frame = b"\0" if messages.is_flexible(key, version) else b""
        request = messages.read_request(
            messages.RequestHeader(key, version, CORRELATION_ID, "tester", 0),
            frame + encoded(make(load_request_schema(key, version), fields)),
        )
        context = RequestContext(self.services, key, version, CORRELATION_ID, "tester", "127.0.0.1", "User:ANONYMOUS")
        result = handler.handle(request, context)
        if asyncio.isfuture(result) or asyncio.iscoroutine(result):
            result = await result
        if isinstance(result, dict):
            body = messages.encode_response(key, version, result)
        else:
            body = joined(result)[9 if messages.is_flexible(key, version) else 8 :]
        response, size = entity_reader(load_response_schema(key, version))(body, 0)
        assert size == len(body)
        return response


def joined(parts: Sequence[Any]) -> bytes:
    data = b""
    for part in parts:
        if isinstance(part, FileSlice):
            data += cast("LogSlice", part.owner).file.pread(part.size, part.position)
        else:
            data += bytes(part)
    return data


def encoded(entity: Any) -> bytes:
    buffer = BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def make(schema: Any, tree: Mapping[str, Any]) -> Any:
    """An entity of one version from a tree; what that version does not have is left out."""
    return schema(
        **{
            field.name: _value(field.type, tree[field.name])
            for field in dataclasses.fields(schema)
            if field.name in tree
        }
    )


def _value(annotation: Any, value: Any) -> Any:
    if value is None:
        return None
    arguments = [each for each in get_args(annotation) if each is not type(None)]
    if get_origin(annotation) is tuple:
        return tuple(_value(arguments[0], each) for each in value)
    if arguments:
        return _value(arguments[0], value)
    if dataclasses.is_dataclass(annotation):
        return make(annotation, value)
    if isinstance(annotation, type) and issubclass(annotation, timedelta):
        return timedelta(milliseconds=value)
    return value


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield World(tmp_path / "data")
