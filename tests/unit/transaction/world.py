"""A transaction coordinator and what stands around it, in memory, on a clock that stands still."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Coroutine, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headwater.logtier.config import BrokerConfig
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.replication.flush_wait import wait_flushed
from headwater.logtier.state_topic.topic import partition_for
from headwater.logtier.state_topic.writes import Wait
from headwater.logtier.transaction.coordinator import TransactionCoordinator
from headwater.logtier.transaction.markers import Marker as RequestedMarker
from headwater.logtier.transaction.markers import MarkerWriter
from headwater.logtier.transaction.metadata import TransactionMetadata, TransactionState
from headwater.logtier.transaction.records import transaction_key, transaction_value
from headwater.logtier.transaction.replay import TransactionReplay
from headwater.logtier.transaction.topic import TRANSACTION_TOPIC
from tests.manual_clock import ManualClock
from tests.unit.state_topic.surroundings import (
    Appended,
    MemoryController,
    MemoryMetadata,
    MemoryReplicas,
    settle,
)


class Marker(NamedTuple):
    """One marker in a partition."""

    producer_id: int
    producer_epoch: int
    commit: bool
    version: int


@dataclass
class MarkedReplicas(MemoryReplicas):
    """The replica manager as it takes markers, too; `refused` partitions take none, `flush` is waited for.

    `marker_gate` makes markers wait for their replication.
    """

    markers: dict[TopicPartition, list[Marker]] = field(default_factory=dict)
    refused: dict[TopicPartition, KafkaError] = field(default_factory=dict)
    flush: Any = None
    marker_gate: asyncio.Event | None = None
    error_at_replication: KafkaError | None = None
    #: Makes markers wait until they are committed, and how that ends.
    commitment_gate: asyncio.Event | None = None
    error_at_commitment: KafkaError | None = None
    #: The coordinator epochs of the markers.
    coordinator_epochs: list[int] = field(default_factory=list)

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
        self.coordinator_epochs.append(coordinator_epoch)
        return Appended(100, 100, self.flush)

    def replication(
        self, topic_partition: TopicPartition, info: Appended, timeout_ms: int, /
    ) -> Coroutine[Any, Any, None] | None:
        if info.flush is None and self.marker_gate is None:
            return None
        return self._replicated(info.flush, self.marker_gate)

    def commitment(self, topic_partition: TopicPartition, last_offset: int, flush: Any = None, /) -> Wait | None:
        if topic_partition.topic == TRANSACTION_TOPIC or self.commitment_gate is None:
            return super().commitment(topic_partition, last_offset, flush)
        return self._marker_committed

    async def _marker_committed(self) -> None:
        assert self.commitment_gate is not None
        await self.commitment_gate.wait()
        if self.error_at_commitment is not None:
            raise self.error_at_commitment

    async def _replicated(self, flush: Any, gate: asyncio.Event | None) -> None:
        if flush is not None and (error := await wait_flushed(flush)) is not None:
            raise error
        if gate is not None:
            await gate.wait()
            if self.error_at_replication is not None:
                raise self.error_at_replication


class OtherLeaders:
    """Other brokers that write markers: their codes, and what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, RequestedMarker, Set[TopicPartition]]] = []
        self.codes: dict[TopicPartition, ErrorCode] = {}
        self.error: KafkaError | None = None

    def write_marker(
        self, broker_id: int, marker: RequestedMarker, partitions: Set[TopicPartition], /
    ) -> Awaitable[Mapping[TopicPartition, ErrorCode]]:
        self.asked.append((broker_id, marker, partitions))
        return self._answer(partitions)

    async def _answer(self, partitions: Set[TopicPartition]) -> Mapping[TopicPartition, ErrorCode]:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return {each: self.codes.get(each, ErrorCode.none) for each in partitions}


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
        self.replicas = MarkedReplicas(self.metadata)
        self.others = OtherLeaders()
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
            MarkerWriter(1, self.replicas, self.metadata, self._marked, self.others),
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
                replay = TransactionReplay(str(key))
                for batch in log.batches():
                    replay.apply(batch)
                found.update(replay.transactions)
        return found

    def live(self) -> dict[str, TransactionMetadata]:
        """What the coordinator knows, but for what is not in the log."""
        return {name: replace(metadata, last_producer_epoch=-1) for name, metadata in self.coordinator.transactions()}


async def code_of(awaitable: Any) -> ErrorCode:
    """The code that a call is refused with, or none."""
    try:
        await awaitable
    except KafkaError as error:
        return error.code
    return ErrorCode.none
