"""A transaction coordinator and what stands around it, in memory, on a clock that stands still."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from logtier.config import BrokerConfig
from logtier.metadata.coordinator_partition import partition_for
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
from logtier.records.batch import Record, build_batch, check_batch, decode_records
from logtier.transaction.coordinator import TransactionCoordinator
from logtier.transaction.metadata import TransactionMetadata, TransactionState
from logtier.transaction.records import transaction_key, transaction_value
from logtier.transaction.replay import Replay
from logtier.transaction.topic import TRANSACTION_TOPIC

PARTITIONS = 3


class ManualClock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class Marker(NamedTuple):
    """One marker in a partition."""

    producer_id: int
    producer_epoch: int
    commit: bool
    version: int


@dataclass
class Appended:
    first_offset: int
    flush: None = None


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
        yield from list(self.stored)

    def compact(self) -> None:
        """Keep the last record of each key, at its offset."""
        records = [record for batch in self.stored for record in decode_records(batch)]
        last = {record.key: record.offset for record in records}
        self.stored = [
            build_batch([Record(record.key, record.value, record.timestamp_ms)], base_offset=record.offset)
            for record in records
            if last[record.key] == record.offset
        ]


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

    def add(self, name: str, partitions: int = PARTITIONS) -> None:
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

    async def create_topics(self, topics: Sequence[Any], /) -> Sequence[Created]:
        self.created += topics
        for topic in topics:
            self.metadata.add(topic.name, topic.num_partitions)
        return [Created() for _ in topics]


@dataclass
class MemoryReplicas:
    """The replica manager: `error` makes writes fail, `gate` makes them wait, `refused` partitions take no marker."""

    metadata: MemoryMetadata
    logs: dict[TopicPartition, MemoryLog] = field(default_factory=dict)
    markers: dict[TopicPartition, list[Marker]] = field(default_factory=dict)
    refused: dict[TopicPartition, KafkaError] = field(default_factory=dict)
    error: Exception | None = None
    gate: asyncio.Event | None = None
    writes: int = 0

    def leader_partitions(self, topic: str) -> list[int]:
        image = self.metadata.image.topic(topic)
        return [] if image is None else list(range(len(image.partitions)))

    def log(self, topic_partition: TopicPartition, /) -> MemoryLog:
        return self.logs.setdefault(topic_partition, MemoryLog())

    async def append_and_wait(self, topic_partition: TopicPartition, records: bytes, timeout_ms: int, /) -> Appended:
        if self.error is not None:
            raise self.error
        self.writes += 1
        first_offset = self.log(topic_partition).append(records)
        if self.gate is not None:
            await self.gate.wait()
        return Appended(first_offset)

    def append_end_txn_marker(
        self,
        topic_partition: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> Appended:
        if topic_partition in self.refused:
            raise self.refused[topic_partition]
        marker = Marker(producer_id, producer_epoch, commit, transaction_version)
        self.markers.setdefault(topic_partition, []).append(marker)
        return Appended(100)


class World:
    """A coordinator over logs that outlive it."""

    def __init__(self, **properties: object) -> None:
        self.config = BrokerConfig.from_properties(
            {
                "transaction.state.log.num.partitions": 2,
                # Time passes by `abort_timed_out` and `remove_expired` alone.
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": 2**31 - 1,
                "transaction.remove.expired.transaction.cleanup.interval.ms": 2**31 - 1,
                **properties,
            }
        )
        self.clock = ManualClock()
        self.metadata = MemoryMetadata()
        self.replicas = MemoryReplicas(self.metadata)
        self.controller = MemoryController(self.metadata)
        self.producer_ids = itertools.count(1000)
        self.told: list[tuple[TopicPartition, int, bool]] = []
        #: What the logs said at each marker.
        self.states_at_markers: list[dict[str, TransactionState]] = []
        self.metadata.add("t")
        self.coordinator = self._new_coordinator()

    def _new_coordinator(self) -> TransactionCoordinator:
        async def next_producer_id() -> int:
            await asyncio.sleep(0)
            return next(self.producer_ids)

        return TransactionCoordinator(
            self.config,
            self.clock,
            self.replicas,
            self.controller,
            self.metadata,
            next_producer_id,
            self._marked,
        )

    def _marked(self, key: TopicPartition, producer_id: int, offset: int, committed: bool) -> None:
        self.told.append((key, producer_id, committed))
        self.states_at_markers.append({name: metadata.state for name, metadata in self.replayed().items()})

    async def start(self) -> TransactionCoordinator:
        """A running coordinator whose topic is there."""
        await self.coordinator.start()
        await self.coordinator.find("payments")
        await settle()
        return self.coordinator

    async def restart(self) -> TransactionCoordinator:
        """What a broker does after a crash: a new coordinator over the same logs."""
        await self.coordinator.stop()
        self.metadata.subscribers.clear()
        self.coordinator = self._new_coordinator()
        await self.coordinator.start()
        await settle()
        return self.coordinator

    async def complete(self, transactional_id: str) -> None:
        """Wait until the outcome of a transaction is complete."""
        while self.coordinator.describe(transactional_id).state.is_prepared:  # noqa: ASYNC110 (nobody is told of it)
            await asyncio.sleep(0.001)

    def store(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        """Put a record into the log, as another coordinator may have."""
        partition = partition_for(transactional_id, self.config.transaction_state_log_num_partitions)
        record = Record(transaction_key(transactional_id), transaction_value(metadata), self.clock.ms)
        self.replicas.log(TopicPartition(TRANSACTION_TOPIC, partition)).append(build_batch([record]))

    def replayed(self) -> dict[str, TransactionMetadata]:
        """What the logs add up to."""
        found: dict[str, TransactionMetadata] = {}
        for key, log in self.replicas.logs.items():
            if key.topic == TRANSACTION_TOPIC:
                replay = Replay(str(key))
                for batch in log.batches():
                    replay.apply(batch)
                found.update(replay.transactions)
        return found

    def live(self) -> dict[str, TransactionMetadata]:
        """What the coordinator knows, but for what is not in the log."""
        return {name: replace(metadata, last_producer_epoch=-1) for name, metadata in self.coordinator.transactions()}


async def settle() -> None:
    """Let everything happen that is due at once."""
    for _ in range(30):
        await asyncio.sleep(0)


async def code_of(awaitable: Any) -> ErrorCode:
    """The code that a call is refused with, or none."""
    try:
        await awaitable
    except KafkaError as error:
        return error.code
    return ErrorCode.none
