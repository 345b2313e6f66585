"""The metadata of a large cluster: the real controller and a real ZooKeeper, without the brokers' logs.

What it measures is what each broker and the controller do for the metadata alone. What replicas cost a broker in files
and memory, `partitions` measures.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from headwater.logtier.cluster.isr_proposals import PARTITIONS_PER_REQUEST_MAX
from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.alter_partition import PartitionAlteration
from headwater.logtier.controller.bootstrap import bootstrap_cluster
from headwater.logtier.controller.commands import NewTopic
from headwater.logtier.controller.controller import Controller
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataCache, MetadataImage
from headwater.logtier.metadata.shared_store import CHANGES, SharedMetadataStore
from headwater.logtier.metadata.store import Create
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage, create_topic
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
from headwater.logtier.metadata.zookeeper.store import ZooKeeperStore
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.runtime.clock import SystemClock
from tests.bench.processes import Failed, resident_mib
from tests.bench.report import Table, listing
from tests.zookeeper import ServerOptions, running_zookeeper

BROKERS: Final = 10
LAST: Final = BROKERS - 1
FACTOR: Final = 3
SESSION_MS: Final = 9_000
#: With 256 MiB the server runs out of memory in the second round: it keeps the last 500 transactions.
ZOOKEEPER_HEAP: Final = "1g"
#: A request that creates topics: its nodes must fit in one transaction of ZooKeeper.
PARTITIONS_A_REQUEST: Final = 2_000
READERS: Final = 3
SEED: Final = 7

Figures = dict[str, list[float]]


def measure(folder: Path, partitions: int, rounds: int) -> tuple[list[Table], dict[str, Figures]]:
    """Clusters of as many partitions, in topics of 100 and of 6; each round kills a broker and brings it back."""
    found: dict[str, Figures] = {}
    for size in (100, 6):
        name = f"{partitions:,} partitions in topics of {size}, {BROKERS} brokers, {FACTOR} replicas"
        with running_zookeeper(folder / f"zookeeper-{size}", ServerOptions(heap=ZOOKEEPER_HEAP)) as server:
            found[name] = asyncio.run(_measured(server.address, partitions, size, rounds))
            found[name]["ZooKeeper's resident memory after it, MiB"] = [resident_mib(server.pid)]
    return [listing(name, figures) for name, figures in found.items()], found


class Member:
    """A broker reduced to what it knows: its session and its image."""

    def __init__(self, address: str, broker_id: int) -> None:
        self.config = BrokerConfig.from_properties({"node.id": broker_id, "min.insync.replicas": FACTOR - 1})
        self.store = SharedMetadataStore(ZooKeeperStore(ZooKeeperSettings(address, SESSION_MS, SESSION_MS)))
        self.cache = MetadataCache(self.config)
        self.follower = MetadataFollower(self.store, self.cache)

    @property
    def image(self) -> MetadataImage:
        return self.cache.image


@asynccontextmanager
async def _member(address: str, broker_id: int) -> AsyncIterator[Member]:
    """A member that has read the metadata."""
    member = Member(address, broker_id)
    await member.store.start()
    try:
        await bootstrap_cluster(member.store, random.Random(SEED), random.Random(SEED).randbytes, {})
        await member.follower.start()
        try:
            yield member
        finally:
            await member.follower.stop()
    finally:
        await member.store.close()


class LargeCluster:
    """A controller, another broker that follows, and registrations of the other brokers.

    A broker's death is the end of its registration's node: how long ZooKeeper takes to notice a silent one is the
    session's part, and not measured here.
    """

    def __init__(self, leading: Member, following: Member) -> None:
        self._leading = leading
        self._following = following
        self.controller = Controller(
            leading.config, SystemClock(), random.Random(SEED), leading.store, leading.follower
        )

    async def start(self) -> None:
        """Elect the controller and register all brokers."""
        await self.controller.start()
        for broker_id in range(BROKERS):
            await self._register(broker_id)
        await self.controller.update_brokers()

    async def create(self, partitions: int, size: int) -> None:
        """Create topics of `size` partitions as many as fit in the number asked for."""
        names = [f"topic-{number}" for number in range(partitions // size)]
        step = PARTITIONS_A_REQUEST // size
        for start in range(0, len(names), step):
            topics = [NewTopic(name, size, FACTOR) for name in names[start : start + step]]
            results = await self.controller.create_topics(topics)
            if refused := [each for each in results if each.error is not None]:
                raise Failed(f"topics were not created: {refused[0]}")
        await self._followed()

    async def lose(self) -> None:
        """End the last broker's registration; return when another broker has all new leaders."""
        await self._leading.store.delete(paths.broker_path(LAST))
        await self.controller.update_brokers()
        await self._followed()
        if any(each.leader in (LAST, NO_BROKER) for each in self._partitions()):
            raise Failed("a partition is not led anew")

    async def regain(self) -> None:
        """Register the last broker again; return when another broker knows it and its partitions' epochs."""
        await self._register(LAST)
        await self.controller.update_brokers()
        await self._followed()

    async def rejoin(self) -> None:
        """Let all leaders take the last broker into their ISRs, in their batches; as many commands as they send."""
        wanted: dict[int, list[PartitionAlteration]] = defaultdict(list)
        registrations = self._leading.image.registrations
        for topic in self._leading.image.topics.values():
            for number, each in enumerate(topic.partitions):
                if LAST in each.replicas and LAST not in each.isr:
                    isr = tuple((broker, registrations[broker].epoch) for broker in (*each.isr, LAST))
                    asked = PartitionAlteration(topic.topic_id, number, each.leader_epoch, each.partition_epoch, isr)
                    wanted[each.leader].append(asked)
        for leader, alterations in wanted.items():
            for start in range(0, len(alterations), PARTITIONS_PER_REQUEST_MAX):
                batch = alterations[start : start + PARTITIONS_PER_REQUEST_MAX]
                results = await self.controller.alter_partitions(leader, registrations[leader].epoch, batch)
                if refused := [each for each in results if each.error_code is not ErrorCode.none]:
                    raise Failed(f"an ISR was refused: {refused[0]}")
        await self._followed()

    async def prefer(self) -> None:
        """Give the last broker its leaderships back."""
        led = -1
        while led != (led := sum(each.leader == LAST for each in self._partitions())):
            await self.controller.elect_preferred_leaders()
            await self._followed()

    async def changes(self) -> tuple[int, int]:
        """Return the number of the next change, and the bytes of those that the list still has."""
        numbers = await self._leading.store.children(CHANGES)
        nodes = await self._leading.store.get_many([f"{CHANGES}/{number}" for number in numbers])
        return self._leading.store.end_offset, sum(len(node.data) for node in nodes if node is not None)

    def state_bytes(self) -> int:
        """Bytes of the nodes with the states of all partitions."""
        topics = self._leading.image.topics.values()
        operations = [each for topic in topics for each in create_topic(topic.name, topic.topic_id, topic.partitions)]
        return sum(len(each.data) for each in operations if isinstance(each, Create))

    def _partitions(self) -> Iterator[PartitionImage]:
        for topic in self._following.image.topics.values():
            yield from topic.partitions

    async def _register(self, broker_id: int) -> None:
        data = paths.encode_broker(f"host-{broker_id}", 9092, None, (), paths.NO_PROCESS)
        await self._leading.store.create(paths.broker_path(broker_id), data, ephemeral=True)

    async def _followed(self) -> None:
        await self._following.follower.reached(self._leading.store.end_offset - 1)


async def _measured(address: str, partitions: int, size: int, rounds: int) -> Figures:
    figures: Figures = {}
    async with _member(address, 0) as leading, _member(address, 1) as following:
        cluster = LargeCluster(leading, following)
        await cluster.start()
        _note(figures, "create them all, s", (await _timed(cluster.create(partitions, size)))[0])
        _note(figures, "states of all partitions, MiB", cluster.state_bytes() / 2**20)
        for _ in range(READERS):
            await _read(address, figures)
        for _ in range(rounds):
            await _one_round(cluster, figures)
    return figures


async def _read(address: str, figures: Figures) -> None:
    """What a broker that starts reads, and what it keeps."""
    gc.collect()
    before = resident_mib(os.getpid())
    begun_s = time.perf_counter()
    async with _member(address, 2):
        _note(figures, "a broker that starts reads all, s", time.perf_counter() - begun_s)
        gc.collect()
        _note(figures, "an image in memory, MiB", resident_mib(os.getpid()) - before)


async def _one_round(cluster: LargeCluster, figures: Figures) -> None:
    steps = (
        ("lost", cluster.lose),
        ("back", cluster.regain),
        ("in the ISRs again", cluster.rejoin),
        ("leader again", cluster.prefer),
    )
    for what, action in steps:
        number, size = await cluster.changes()
        seconds, cpu = await _timed(action())
        end, size_after = await cluster.changes()
        _note(figures, f"a broker is {what}: until another broker knows it, s", seconds)
        _note(figures, f"a broker is {what}: CPU of controller and follower, s", cpu)
        _note(figures, f"a broker is {what}: changes", end - number)
        if size_after > size:  # else the list was trimmed meanwhile
            _note(figures, f"a broker is {what}: bytes to each broker, MiB", (size_after - size) / 2**20)


async def _timed(action: Awaitable[None]) -> tuple[float, float]:
    """Return the time and the CPU time of this process, in seconds."""
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    await action
    return time.perf_counter() - begun_s, time.process_time() - cpu_s


def _note(figures: Figures, figure: str, value: float) -> None:
    figures.setdefault(figure, []).append(value)
    print(f"  {figure}: {value:,.2f}", flush=True)
