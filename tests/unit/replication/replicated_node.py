"""One broker of three behind its handlers: the other two are what a test says of them."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from kio.index import load_response_schema
from kio.serial import entity_reader

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.handlers.context import RequestContext, Services
from headwater.logtier.handlers.records import produce
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata.image import (
    BrokerRegistration,
    MetadataCache,
    MetadataImage,
    TopicImage,
    metadata_delta,
)
from headwater.logtier.metadata.topic_nodes import PartitionImage
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_instructions import ProposeIsr
from headwater.logtier.replication.partition_reads import FetchPartition
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.disk import RealDisk
from tests.manual_clock import ManualClock
from tests.unit.log.conftest import PromptDisk

TOPIC = "flights"
TOPIC_ID = uuid.UUID(int=5)
P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
PRODUCE_VERSION = 12


OK = ErrorCode.none


class Timers:
    """`call_later` of an event loop whose time a test moves."""

    def __init__(self) -> None:
        self.pending: list[tuple[float, Callable[[], None], Timers.Handle]] = []
        self.now_s = 0.0

    class Handle:
        is_cancelled = False

        def cancel(self) -> None:
            self.is_cancelled = True

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timers.Handle:
        handle = Timers.Handle()
        self.pending.append((self.now_s + delay_s, call, handle))
        return handle

    def pass_time(self, seconds: float) -> None:
        until = self.now_s + seconds
        while True:
            self.pending = [each for each in self.pending if not each[2].is_cancelled]
            due = min((each for each in self.pending if each[0] <= until), key=lambda each: each[0], default=None)
            if due is None:
                break
            self.pending.remove(due)
            self.now_s = due[0]
            due[1]()
        self.now_s = until


class ReplicatedNode:
    """Broker 1 leads both partitions of a topic; 2 and 3 follow. `proposals` are those for the controller."""

    def __init__(self, path: Path, disk: RealDisk | None = None, **configs: str) -> None:
        self.config = BrokerConfig.from_properties({"log.dirs": [str(path)], "node.id": 1})
        self.configs = {name.replace("_", "."): value for name, value in configs.items()}
        self.clock = ManualClock()
        self.timers = Timers()
        self.proposals: list[ProposeIsr] = []
        self.logs = LogManager(
            self.config, disk or PromptDisk(), self.clock, random.Random(1), post=lambda call: call()
        )
        self.logs.start()
        self.replicas = ReplicaManager(
            1,
            lambda topic: TopicConfig.resolve(topic.configs, self.config),
            self.logs,
            self.clock,
            self.timers.call_later,
            propose_isr=self.proposals.append,
        )
        self.image = MetadataImage(
            brokers={each: BrokerRegistration(each, "here", 9092, epoch=10 + each) for each in (1, 2, 3)}
        )
        nobody: Any = None
        self.metadata = SimpleNamespace(image=self.image, static_config=self.config, config=self.config)
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
        )

    def start(self, isr: tuple[int, ...] = (1, 2, 3), *, replicas: tuple[int, ...] = (1, 2, 3), epoch: int = 0) -> None:
        """The broker's start with this metadata."""
        self.image = self._with(PartitionImage(1, epoch, epoch, replicas, isr))
        self.metadata.image = self.image
        self.replicas.start(self.image)

    def change(self, **fields: Any) -> None:
        """Another state of both partitions, one partition epoch later."""
        known = self.image.topics[TOPIC].partitions[0]
        self.follow(self._with(replace(known, partition_epoch=known.partition_epoch + 1, **fields)))

    def delete(self) -> None:
        self.follow(replace(self.image, topics={}, topic_names={}, deleted_topics={str(TOPIC_ID): 1}))

    def follow(self, image: MetadataImage) -> None:
        delta = metadata_delta(self.image, image)
        self.image = self.metadata.image = image
        self.replicas.apply(delta)

    def _with(self, state: PartitionImage) -> MetadataImage:
        topic = TopicImage(TOPIC, TOPIC_ID, (state, state), self.configs)
        return replace(self.image, topics={TOPIC: topic}, topic_names={TOPIC_ID: TOPIC})

    # ---- the other brokers ----

    def fetched(self, broker_id: int, offset: int | None = None, *, key: TopicPartition = P0, start: int = 0) -> None:
        """A follower has fetched everything below an offset, by default all that there is."""
        self.replicas.partition_replication.follower_fetched(
            key,
            broker_id,
            fetch_offset=self.partition(key).log.log_end_offset if offset is None else offset,
            log_start_offset=start,
            broker_epoch=10 + broker_id,
        )

    def partition(self, key: TopicPartition = P0) -> Partition[Any]:
        return self.replicas.partition(key)

    # ---- clients ----

    def append(self, key: TopicPartition = P0, count: int = 1, acks: int = 1) -> Any:
        return self.replicas.append(key, memoryview(batch(count)), acks=acks)

    def produce(
        self, *indexes: int, acks: int = -1, timeout_ms: int = 1_000, **fields: int
    ) -> list[tuple[ErrorCode, int]] | Awaitable[list[tuple[ErrorCode, int]]]:
        """Codes and offsets of the partitions, now or later."""
        data = [PartitionProduceData(index, memoryview(batch(1, **fields))) for index in indexes or (0,)]
        request = ProduceRequest(None, acks, timeout_ms, [TopicProduceData(TOPIC, None, data)])
        answer = produce.handle(request, self.context(produce.API_KEY, PRODUCE_VERSION))
        return _produced_later(answer) if isinstance(answer, Awaitable) else _produced(answer)

    def call(self, handler: ModuleType, version: int, request: object) -> Any:
        """The answer of a handler, which may have to be awaited."""
        return handler.handle(request, self.context(handler.API_KEY, version))

    def context(self, api_key: int, version: int) -> RequestContext:
        return RequestContext(self.services, api_key, version, 1, "tester", "127.0.0.1", "User:a")

    def fetch(self, offset: int, *, wait_ms: int = 0, is_of_replica: bool = False) -> Any:
        wanted = [FetchPartition(P0, None, offset, 1_000_000, is_of_replica=is_of_replica)]
        return self.replicas.fetches.fetch(wanted, bytes_max=1_000_000, bytes_min=1, wait_ms_max=wait_ms)

    def close(self) -> None:
        self.replicas.partition_replication.stop()
        self.logs.close()

    def kill(self) -> None:
        for directory in self.logs.directories:
            directory.release()


def batch(count: int, **fields: int) -> bytearray:
    return bytearray(build_batch([Record(None, b"v", 1_000_000)] * count, **fields))


async def _produced_later(answer: Awaitable[Any]) -> list[tuple[ErrorCode, int]]:
    return _produced(await answer)


def _produced(answer: Any) -> list[tuple[ErrorCode, int]]:
    if answer is None:
        return []
    frame = b"".join(bytes(part) for part in answer)
    response: Any
    response, _ = entity_reader(load_response_schema(0, PRODUCE_VERSION))(frame[9:], 0)
    return [(each.error_code, each.base_offset) for topic in response.responses for each in topic.partition_responses]


Make = Callable[..., ReplicatedNode]
"""The fixture `make`: creates nodes, which end with the test."""


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 30))
