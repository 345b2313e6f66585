"""Brokers whose replicas follow each other in virtual time: real logs, handlers and codecs, no connections."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import BrokerConnectionError
from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.handlers.context import Services
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata.image import (
    BrokerRegistration,
    MetadataImage,
    TopicImage,
    metadata_delta,
)
from headwater.logtier.metadata.topic_nodes import PartitionImage
from headwater.logtier.peers.peers import Purpose
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.replication.fetch_session import FetchSessionCache
from headwater.logtier.replication.fetching import ReplicaFetchers
from headwater.logtier.replication.partition_instructions import IsrDecision, ProposeIsr
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.disk import RealDisk
from tests.unit.log.conftest import PromptDisk
from tests.unit.replication.handled_requests import handled
from tests.virtual_time import LoopClock, run_virtually

TOPIC: Final = "flights"
TOPIC_ID: Final = uuid.UUID(int=5)
P0 = TopicPartition(TOPIC, 0)
P1 = TopicPartition(TOPIC, 1)
#: Time of a request on its way, and of its response.
TRIP_S: Final = 0.001

_T = TypeVar("_T")


class Node:
    """A broker without listeners."""

    def __init__(self, cluster: Cluster, broker_id: int, path: Path, disk: RealDisk) -> None:
        self.broker_id = broker_id
        self.cluster = cluster
        clock = LoopClock()
        self.config = BrokerConfig.from_properties({"log.dirs": [str(path)], "node.id": broker_id})
        self.logs = LogManager(self.config, disk, clock, random.Random(1), post=lambda call: call())
        self.logs.start()
        self.replicas = ReplicaManager(
            broker_id,
            lambda topic: TopicConfig.resolve(topic.configs, self.config),
            self.logs,
            clock,
            asyncio.get_running_loop().call_later,
            propose_isr=lambda proposal: cluster.propose(self, proposal),
        )
        self.metadata = SimpleNamespace(image=MetadataImage(), static_config=self.config, config=self.config)
        nobody: Any = None
        self.services = Services(
            clock,
            random.Random(1),
            cast("Any", self.metadata),
            nobody,
            self.replicas,
            nobody,
            nobody,
            nobody,
            nobody,
            fetch_sessions=FetchSessionCache(10, random.Random(1)),
        )
        self.fetchers = ReplicaFetchers(
            broker_id,
            cast("Any", NodePeers(self)),
            self.replicas,
            cast("Any", self.metadata),
            clock,
            lambda: cluster.image.registrations[broker_id].epoch,
            lambda: self.config,
        )
        self.is_up = True

    def start(self, image: MetadataImage) -> None:
        self.metadata.image = image
        self.replicas.start(image)
        self.fetchers.start()

    def follow(self, image: MetadataImage) -> None:
        delta = metadata_delta(self.metadata.image, image)
        self.metadata.image = image
        self.replicas.apply(delta)
        self.fetchers.metadata_changed(delta)

    def partition(self, key: TopicPartition = P0) -> Any:
        return self.replicas.partition(key)

    def append(self, count: int = 1, *, key: TopicPartition = P0, acks: int = 1, **fields: int) -> Any:
        batch = build_batch([Record(None, b"v", 1_000_000)] * count, **fields)
        return self.replicas.append(key, memoryview(bytearray(batch)), acks=acks)

    async def acknowledged(self, info: Any, *, key: TopicPartition = P0, timeout_ms: int = 30_000) -> Any:
        wait = self.replicas.acknowledgement([(key, info)], timeout_ms, acks=-1)
        return None if wait is None else (await wait.results())[0]

    def state(self, key: TopicPartition = P0) -> tuple[int, int, int]:
        """Log start, log end and watermark."""
        partition = self.partition(key)
        return partition.log.log_start_offset, partition.log.log_end_offset, partition.high_watermark

    def content(self, key: TopicPartition = P0) -> bytes:
        """The bytes of all batches."""
        return b"".join(bytes(each) for each in self.partition(key).log.batches())

    def epochs(self, key: TopicPartition = P0) -> list[tuple[int, int]]:
        return cast("list[tuple[int, int]]", self.partition(key).log.leader_epochs.entries())

    async def crash(self) -> None:
        """Nothing is written down; what the disk has stays."""
        self.is_up = False
        await self.fetchers.aclose()
        for directory in self.logs.directories:
            directory.release()


class NodePeers:
    """The connections of one node: a request at a time for each purpose, as on a real one."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._turns: dict[tuple[int, Purpose], asyncio.Lock] = {}

    async def call(self, broker_id: int, purpose: Purpose, request: Request[_T], timeout_ms: int | None = None) -> _T:
        cluster = self._node.cluster
        async with self._turns.setdefault((broker_id, purpose), asyncio.Lock()):
            await asyncio.sleep(TRIP_S)
            target = cluster.nodes[broker_id]
            self._check_reached(target)
            cluster.requests.append((self._node.broker_id, broker_id, purpose, request))
            response = await handled(target.services, request)
            await asyncio.sleep(TRIP_S)
            self._check_reached(target)
            return cast("_T", cluster.on_response(self._node, response))

    def _check_reached(self, target: Node) -> None:
        if not target.is_up or (self._node.broker_id, target.broker_id) in self._node.cluster.cut:
            raise BrokerConnectionError(f"broker {target.broker_id} is away")


class Cluster:
    """Brokers and a controller that a test plays: it accepts every ISR of the present partition epoch."""

    def __init__(self, path: Path, **configs: str) -> None:
        self.path = path
        self.configs = {name.replace("_", "."): value for name, value in configs.items()}
        self.image = MetadataImage()
        self.nodes: dict[int, Node] = {}
        self.requests: list[tuple[int, int, Purpose, Request[Any]]] = []
        #: Pairs of brokers, the first of which does not reach the second.
        self.cut: set[tuple[int, int]] = set()
        self.on_response: Callable[[Node, Any], Any] = lambda _, response: response
        self.brokers = (1, 2, 3)
        self.is_controller_there = True
        self._decisions: set[asyncio.Task[None]] = set()

    def start(
        self,
        *states: PartitionImage,
        topic_id: uuid.UUID = TOPIC_ID,
        disks: dict[int, RealDisk] | None = None,
    ) -> None:
        brokers = {each: BrokerRegistration(each, "here", 9092, epoch=10 + each) for each in self.brokers}
        self.image = replace(self.image, brokers=brokers, registrations=brokers)
        self.image = self.with_topic(*states, topic_id=topic_id)
        for each in self.brokers:
            self.start_node(each, (disks or {}).get(each))

    def start_node(self, broker_id: int, disk: RealDisk | None = None) -> Node:
        node = self.nodes[broker_id] = Node(self, broker_id, self.path / str(broker_id), disk or PromptDisk())
        node.start(self.image)
        return node

    def with_topic(self, *states: PartitionImage, topic_id: uuid.UUID = TOPIC_ID) -> MetadataImage:
        topic = TopicImage(TOPIC, topic_id, states, self.configs)
        return replace(self.image, topics={TOPIC: topic}, topic_names={topic_id: TOPIC})

    def publish(self, image: MetadataImage, *to: int) -> None:
        """Another image, which these brokers learn now; by default all."""
        self.image = image
        for each in to or tuple(self.nodes):
            if self.nodes[each].is_up:
                self.nodes[each].follow(image)

    def elect(self, leader: int, *to: int, key: TopicPartition = P0, **fields: Any) -> None:
        """Another leader, or the same in a later epoch."""
        topic = self.image.topics[TOPIC]
        states = list(topic.partitions)
        known = states[key.partition]
        states[key.partition] = replace(
            known,
            leader=leader,
            leader_epoch=known.leader_epoch + 1,
            partition_epoch=known.partition_epoch + 1,
            **fields,
        )
        self.publish(self.with_topic(*states, topic_id=topic.topic_id), *to)

    def propose(self, node: Node, proposal: ProposeIsr) -> None:
        task = asyncio.get_running_loop().create_task(self._decide(node, proposal))
        self._decisions.add(task)
        task.add_done_callback(self._decisions.discard)

    async def _decide(self, node: Node, proposal: ProposeIsr) -> None:
        await asyncio.sleep(2 * TRIP_S)
        if not self.is_controller_there:
            return
        topic = self.image.topics[TOPIC]
        states = list(topic.partitions)
        state = states[proposal.topic_partition.partition]
        if (state.partition_epoch, state.leader_epoch) != (proposal.partition_epoch, proposal.leader_epoch):
            decision = IsrDecision(ErrorCode.invalid_update_version)
        else:
            state = replace(state, isr=proposal.isr, partition_epoch=state.partition_epoch + 1)
            states[proposal.topic_partition.partition] = state
            self.publish(self.with_topic(*states, topic_id=topic.topic_id))
            decision = IsrDecision(ErrorCode.none, state.leader_epoch, state.partition_epoch, state.isr)
        if node.is_up:
            node.replicas.partition_replication.isr_decided(proposal, decision)

    async def equal(self, end: int, *, key: TopicPartition = P0, within_s: float = 5.0) -> None:
        """Waits until every broker has the same records up to an offset, and the watermark there."""
        up = [node for node in self.nodes.values() if node.is_up]
        await until(lambda: all(node.state(key)[1:] == (end, end) for node in up), within_s)
        assert len({node.content(key) for node in up}) == 1
        # A leader knows the begin of its epoch before there is a record of it.
        assert len({tuple(each for each in node.epochs(key) if each[1] < end) for node in up}) == 1

    async def stop(self) -> None:
        for node in self.nodes.values():
            if node.is_up:
                await node.crash()
        for task in list(self._decisions):
            task.cancel()


async def settled(cluster: Cluster, end: int) -> None:
    leader = cluster.nodes[cluster.image.topics[TOPIC].partitions[0].leader]
    assert await leader.acknowledged(leader.append(acks=-1)) is None
    await cluster.equal(end + 1)


async def until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.0005)


def led_by(leader: int, *, isr: tuple[int, ...] = (1, 2, 3), epoch: int = 0) -> PartitionImage:
    return PartitionImage(leader, epoch, epoch, (1, 2, 3), isr)


Scenario = Callable[[Cluster], Coroutine[Any, Any, None]]


def run(path: Path, scenario: Scenario, **configs: str) -> None:
    """Runs a scenario in virtual time with three brokers, of which the first leads both partitions unless it starts."""

    async def main() -> None:
        cluster = Cluster(path, **configs)
        try:
            await scenario(cluster)
        finally:
            await cluster.stop()

    run_virtually(main())
