"""A broker reduced to its metadata, whose session is watched; it notes what becomes of its leaderships."""

from __future__ import annotations

import asyncio

from headwater.logtier.cluster.session_watch import SessionWatch
from headwater.logtier.metadata.store import SessionState
from tests.simulation.metadata_node import SESSION_S, MetadataNode
from tests.simulation.virtual_loop import VirtualLoop
from tests.virtual_time import LoopClock


class Watched:
    """A node with a watch, and what the watch did: the leaderships of the broker."""

    def __init__(self, node: MetadataNode, clock: LoopClock | None = None) -> None:
        self.node = node
        self.did: list[str] = []
        self.watch = SessionWatch(
            node.store, node.cache, node.broker_id, self, self, clock or LoopClock(), int(SESSION_S * 1000)
        )
        node.registrar.on_registered = self.watch.registered

    async def start(self) -> None:
        """Start the watch, as a part of the node's process."""

        async def start() -> None:
            self.watch.start()

        await self.node.spawn(start())

    async def stop(self) -> None:
        await self.node.spawn(self.watch.aclose())

    @property
    def broker_epoch(self) -> int:
        return self.node.registrar.epoch

    @property
    def session_id(self) -> int:
        return self.node.registrar.session_id

    def fence(self) -> None:
        self.did.append("fence")

    def unfence(self) -> None:
        known = self.node.image.brokers[self.node.broker_id]
        assert known.epoch == self.node.registrar.epoch, "the image is older than the registration"
        assert self.node.store.state is not SessionState.LOST
        self.did.append("unfence")

    def store_heard(self) -> None:
        self.did.append("heard")

    def thaw(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.thaw(self.node.process)
