"""In-memory stand-ins for what stands around the group coordinator."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from logtier.config import BrokerConfig
from logtier.group.coordinator import GroupCoordinator
from logtier.metadata.image import (
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    TopicImage,
    first_partition_state,
    metadata_delta,
)
from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.protocol.topic_partition import TopicPartition
from logtier.records.batch import RecordBatchHeader, check_batch


class ManualClock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class MemoryLog:
    """Batches with offsets assigned, as a log keeps them."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.end_offset = 0

    def append(self, batch: bytes) -> int:
        header = check_batch(batch)
        first_offset = self.end_offset
        self.stored.append(first_offset.to_bytes(8, "big") + batch[8:])
        self.end_offset += header.record_count
        return first_offset

    def batches(self) -> Iterator[bytes]:
        for batch in self.stored:
            RecordBatchHeader.parse(batch)
            yield batch


@dataclass
class Appended:
    first_offset: int


class MemoryMetadata:
    """The metadata cache."""

    def __init__(self) -> None:
        self.image = MetadataImage(brokers={1: BrokerRegistration(1, "here", 9092)})
        self.subscribers: list[Callable[[MetadataDelta], None]] = []

    def subscribe(self, callback: Callable[[MetadataDelta], None], /) -> None:
        self.subscribers.append(callback)

    def set_topics(self, topics: dict[str, TopicImage]) -> None:
        old = self.image
        self.image = replace(old, topics=topics, topic_names={topic.topic_id: name for name, topic in topics.items()})
        for subscriber in self.subscribers:
            subscriber(metadata_delta(old, self.image))

    def add(self, name: str, partitions: int = 3) -> None:
        topic = TopicImage(name, uuid.uuid4(), tuple(first_partition_state((1,)) for _ in range(partitions)))
        self.set_topics({**self.image.topics, name: topic})

    def remove(self, name: str) -> None:
        self.set_topics({key: topic for key, topic in self.image.topics.items() if key != name})


@dataclass
class Created:
    error: KafkaError | None = None


@dataclass
class MemoryController:
    """Creates topics in the metadata."""

    metadata: MemoryMetadata
    created: list[Any] = field(default_factory=list)
    error: KafkaError | None = None

    async def create_topics(self, topics: Sequence[Any], /) -> Sequence[Created]:
        self.created += topics
        if self.error is not None:
            return [Created(self.error)]
        for topic in topics:
            self.metadata.add(topic.name, topic.num_partitions)
        return [Created() for _ in topics]


@dataclass
class MemoryReplicas:
    """The replica manager; `error` makes appends fail, `gate` makes them wait."""

    metadata: MemoryMetadata
    logs: dict[TopicPartition, MemoryLog] = field(default_factory=dict)
    error: Exception | None = None
    gate: asyncio.Event | None = None

    def leader_partitions(self, topic: str) -> list[int]:
        image = self.metadata.image.topic(topic)
        return [] if image is None else list(range(len(image.partitions)))

    def log(self, topic_partition: TopicPartition, /) -> MemoryLog:
        return self.logs.setdefault(topic_partition, MemoryLog())

    async def append_and_wait(
        self, topic_partition: TopicPartition, records: bytes, timeout_ms: int, /, **transaction: object
    ) -> Appended:
        if self.error is not None:
            raise self.error
        first_offset = self.log(topic_partition).append(records)
        if self.gate is not None:
            await self.gate.wait()
        return Appended(first_offset)


@dataclass
class World:
    """A coordinator and what stands around it."""

    properties: dict[str, object] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)
    metadata: MemoryMetadata = field(default_factory=MemoryMetadata)

    def __post_init__(self) -> None:
        self.config = BrokerConfig.from_properties(
            {
                "group.initial.rebalance.delay.ms": 0,
                "group.min.session.timeout.ms": 1,
                "offsets.topic.num.partitions": 4,
                **self.properties,
            }
        )
        self.replicas = MemoryReplicas(self.metadata)
        self.controller = MemoryController(self.metadata)
        self.groups = self.new_coordinator()

    def new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            self.config, self.clock, random.Random(1), self.replicas, self.controller, self.metadata
        )

    async def restart(self) -> None:
        """What a broker does after a crash: a new coordinator over the same log."""
        self.metadata.subscribers.clear()
        self.groups = self.new_coordinator()
        await self.groups.start()
        await settle()

    async def join(self, group_id: str, *, member_id: str = "", **named: Any) -> Any:
        """Join with ordinary arguments, through the hand-out of the member id."""
        arguments: dict[str, Any] = {
            "group_instance_id": None,
            "client_id": "client",
            "client_host": "/10.0.0.1",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": [("range", bytes.fromhex("0000 00000001 0001 74 ffffffff"))],
            **named,
        }
        result = await self.groups.join(group_id, member_id=member_id, **arguments)
        if result.error is ErrorCode.member_id_required:
            result = await self.groups.join(group_id, member_id=result.member_id, **arguments)
        return result

    async def sync(self, group_id: str, joined: Any, **assignments: bytes) -> Any:
        return await self.groups.sync(
            group_id,
            member_id=joined.member_id,
            group_instance_id=None,
            generation_id=joined.generation_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments={joined.member_id: b"everything"} if joined.members else {},
        )


async def settle() -> None:
    """Let everything happen that is due at once."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def make_world() -> Callable[..., World]:
    """Makes a coordinator with its surroundings; the tests run the loop."""
    return World


@pytest.fixture
def settled() -> Callable[[], Any]:
    return settle
