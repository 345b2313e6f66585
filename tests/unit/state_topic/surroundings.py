"""What stands around a coordinator, in memory, on a clock that stands still."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headwater.logtier.metadata.image import (
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    TopicImage,
    metadata_delta,
)
from headwater.logtier.metadata.topic_nodes import first_partition_state
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, RecordBatchHeader, build_batch, check_batch, decode_records
from headwater.logtier.state_topic.writes import Wait
from tests.topic_images import with_leader_epoch


class MemoryLog:
    """Batches with offsets assigned, as a log keeps them."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.log_end_offset = 0

    def append(self, batch: bytes) -> int:
        header = check_batch(batch)
        first_offset = self.log_end_offset
        self.stored.append(first_offset.to_bytes(8, "big") + batch[8:])
        self.log_end_offset += header.record_count
        return first_offset

    def batches(self) -> Iterator[bytes]:
        for batch in list(self.stored):
            RecordBatchHeader.parse(batch)
            yield batch

    def compact(self) -> None:
        """Keep the last record of each key, at its offset."""
        records = [record for batch in self.stored for record in decode_records(batch)]
        last = {record.key: record.offset for record in records}
        self.stored = [
            build_batch([Record(record.key, record.value, record.timestamp_ms)], base_offset=record.offset)
            for record in records
            if last[record.key] == record.offset
        ]


@dataclass
class Appended:
    first_offset: int
    last_offset: int
    flush: Any = None


class MemoryMetadata:
    """The metadata cache."""

    def __init__(self) -> None:
        self.image = MetadataImage(brokers={1: BrokerRegistration(1, "here", 9092)})
        self.subscribers: list[Callable[[MetadataDelta], None]] = []

    def subscribe(self, callback: Callable[[MetadataDelta], None], /) -> None:
        self.subscribers.append(callback)

    def set_topics(self, topics: dict[str, TopicImage], *deleted: uuid.UUID) -> None:
        old = self.image
        self.image = replace(
            old,
            topics=topics,
            topic_names={topic.topic_id: name for name, topic in topics.items()},
            deleted_topics={**old.deleted_topics, **{str(each): 0 for each in deleted}},
        )
        for subscriber in self.subscribers:
            subscriber(metadata_delta(old, self.image))

    def add(self, name: str, partitions: int = 3) -> None:
        topic = TopicImage(name, uuid.uuid4(), tuple(first_partition_state((1,)) for _ in range(partitions)))
        self.set_topics({**self.image.topics, name: topic})

    def grow(self, name: str, partitions: int) -> None:
        topic = self.image.topics[name]
        more = tuple(first_partition_state((1,)) for _ in range(partitions - len(topic.partitions)))
        self.set_topics({**self.image.topics, name: replace(topic, partitions=(*topic.partitions, *more))})

    def move(self, name: str, index: int, *, leader: int, leader_epoch: int) -> None:
        topic = self.image.topics[name]
        partitions = list(topic.partitions)
        partitions[index] = replace(partitions[index], leader=leader, leader_epoch=leader_epoch)
        self.set_topics({**self.image.topics, name: replace(topic, partitions=tuple(partitions))})

    def elect(self, leader_epoch: int) -> None:
        self.set_topics(dict(with_leader_epoch(self.image, leader_epoch).topics))

    def remove(self, name: str) -> None:
        deleted = self.image.topics[name].topic_id
        self.lose(name, deleted)

    def lose(self, name: str, *deleted: uuid.UUID) -> None:
        """Take a topic out of the image, as a store does that has lost its nodes."""
        self.set_topics({key: topic for key, topic in self.image.topics.items() if key != name}, *deleted)


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
    """The replica manager; `error` makes appends fail, `gate` makes appends and loads wait for the watermark."""

    metadata: MemoryMetadata
    logs: dict[TopicPartition, MemoryLog] = field(default_factory=dict)
    error: Exception | None = None
    error_at_commitment: KafkaError | None = None
    #: Partitions that another broker leads.
    elsewhere: set[int] = field(default_factory=set)
    gate: asyncio.Event | None = None
    writes: int = 0

    def leader_partitions(self, topic: str) -> list[int]:
        image = self.metadata.image.topic(topic)
        return [] if image is None else [each for each in range(len(image.partitions)) if each not in self.elsewhere]

    def log(self, topic_partition: TopicPartition, /) -> MemoryLog:
        return self.logs.setdefault(topic_partition, MemoryLog())

    def append(self, topic_partition: TopicPartition, records: bytes, /, **how: object) -> Appended:
        if self.error is not None:
            raise self.error
        self.writes += 1
        log = self.log(topic_partition)
        return Appended(log.append(records), log.log_end_offset - 1)

    def commitment(self, topic_partition: TopicPartition, last_offset: int, flush: Any = None, /) -> Wait | None:
        return None if self.gate is None or last_offset < 0 else functools.partial(self._committed, self.gate)

    async def _committed(self, gate: asyncio.Event) -> None:
        await gate.wait()
        if self.error_at_commitment is not None:
            raise self.error_at_commitment


async def settle() -> None:
    """Let everything happen that is due at once."""
    for _ in range(30):
        await asyncio.sleep(0)
