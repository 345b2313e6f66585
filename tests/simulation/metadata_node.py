"""A broker reduced to its part in the cluster's metadata: it registers, follows, and stands for controller."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.bootstrap import bootstrap_cluster
from headwater.logtier.controller.controller import Controller
from headwater.logtier.controller.controller_election import ControllerElection
from headwater.logtier.controller.registration import BrokerAddresses, BrokerRegistrar
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataCache, MetadataImage
from headwater.logtier.metadata.shared_store import SharedMetadataStore
from headwater.logtier.runtime.clock import SystemClock
from tests.simulation.virtual_loop import PROCESS, Process
from tests.simulation.zookeeper_model import ZooKeeperModel

SESSION_S = 6.0


class MetadataNode:
    """One life of a broker; `crash` ends it as kill -9 does."""

    def __init__(self, model: ZooKeeperModel, broker_id: int, life: int, chance: random.Random, name: str = "") -> None:
        self.broker_id = broker_id
        self.name = name or f"broker-{broker_id}"
        self.process = Process(f"{self.name}#{life}")
        self._model = model
        self._chance = chance
        self._context = Context()
        self._context.run(PROCESS.set, self.process)
        config = BrokerConfig.from_properties(
            {"node.id": broker_id, "min.insync.replicas": 2, "zookeeper.connect": "model:2181"}
        )
        self.failures: list[str] = []
        self.cache = MetadataCache(config)
        self.store = SharedMetadataStore(model.store(self.name, int(SESSION_S * 1000)))
        self.follower = MetadataFollower(self.store, self.cache, self.failures.append)
        self.controller = Controller(config, SystemClock(), chance, self.store, self.follower)
        self.election = ControllerElection(self.store, self.controller)
        self.registrar = BrokerRegistrar(
            self.store, self.follower, broker_id, BrokerAddresses(self.name, 9092), SESSION_S
        )

    @property
    def image(self) -> MetadataImage:
        return self.cache.image

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work, context=self._context)

    async def start(self) -> None:
        """Start; a test that kills the node meanwhile cancels nothing, as nobody tells a killed process."""
        await self.spawn(self._start())

    async def _start(self) -> None:
        await self.store.start()
        await bootstrap_cluster(self.store, self._chance, self._chance.randbytes, {})
        await self.follower.start()
        await self.election.start()
        await self.registrar.start()

    async def stop(self) -> None:
        """Stop cleanly."""
        await self.spawn(self._stop())

    async def _stop(self) -> None:
        await self.registrar.stop()
        await self.election.stop()
        await self.controller.stop()
        await self.follower.stop()
        await self.store.close()

    def crash(self) -> None:
        self.process.kill()
        self._model.crash(self.name)
