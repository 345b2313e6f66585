"""Brokers reduced to metadata, controller and handlers: they send each other real requests, on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from headwater.logtier.client.connection import BrokerConnection, Request
from headwater.logtier.client.errors import BrokerConnectionError, ClientError, RequestTimeoutError
from headwater.logtier.cluster.forwarding import Forwarding
from headwater.logtier.cluster.isr_proposals import IsrProposals
from headwater.logtier.cluster.remote_changes import RemoteChanges
from headwater.logtier.handlers.context import Services
from headwater.logtier.handlers.dispatcher import Dispatcher
from headwater.logtier.handlers.registry import BETWEEN_BROKERS, HANDLERS, advertised_versions
from headwater.logtier.metadata.image import MetadataDelta
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.peers.controller_channel import ControllerChannel
from headwater.logtier.peers.peers import Purpose, SendToBroker
from headwater.logtier.protocol.errors import ProtocolViolationError
from headwater.logtier.replication.partition_instructions import IsrDecision, ProposeIsr
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.security.listener import PLAINTEXT_LISTENER, ListenerSecurity
from tests.simulation.metadata_node import MetadataNode
from tests.simulation.test_metadata_nodes import Cluster
from tests.simulation.virtual_loop import VirtualLoop, drop
from tests.virtual_time import LoopClock

T = TypeVar("T")

BROKER = "User:broker"
LATENCY_S = 0.002


class Caller:
    """The connection of a request."""

    def __init__(self, principal: str, listener: ListenerSecurity = PLAINTEXT_LISTENER) -> None:
        self.principal = principal
        self.peer_host = "10.0.0.9"
        self.listener = listener
        self.sasl = None
        self.muted_ms: list[int] = []
        #: Hosts whose refused requests count.
        self.refused: list[str] = []

    def keep_request_memory(self) -> bool:
        return False

    def release_request_memory(self) -> None:
        pass

    def logs_refusal(self, host: str) -> bool:
        self.refused.append(host)
        return len(self.refused) == 1

    def mute(self, wait_ms: int) -> None:
        self.muted_ms.append(wait_ms)


class NoLogs:
    """A replica manager whose folders are all online."""

    has_offline = False

    def offline_replicas(self, topic: str, partition: int) -> tuple[int, ...]:
        return ()


class OnePurpose:
    """Peers whose connections do not differ."""

    def __init__(self, send: SendToBroker) -> None:
        self._send = send

    def sender(self, _: Purpose) -> SendToBroker:
        return self._send


class ControlNode:
    """What a metadata node lacks to take and send requests."""

    def __init__(self, node: MetadataNode, network: Network) -> None:
        self.node = node
        self.network = network
        nothing = cast("Any", None)
        clock = LoopClock()
        self.services = Services(
            SystemClock(),
            random.Random(node.broker_id),
            node.cache,
            node.controller,
            cast("Any", NoLogs()),
            nothing,
            nothing,
            nothing,
            nothing,
            advertised_versions(),
            inter_broker_listener=PLAINTEXT_LISTENER.name,
        )
        self.dispatcher = Dispatcher(self.services, HANDLERS, BETWEEN_BROKERS)
        self.services.forwarding = Forwarding(
            node.broker_id, cast("Any", OnePurpose(self._send)), node.cache, clock, random.Random(8).random
        )
        self.channel = ControllerChannel(self._controller, self._send, clock, random.Random(9).random)
        self.changes = RemoteChanges(node.broker_id, self.channel, node.follower, lambda: node.registrar.epoch)
        self.services.remote_changes = self.changes
        self.proposals = IsrProposals(node.broker_id, self.channel, node.cache, clock, lambda: node.registrar.epoch)
        self.decisions: list[tuple[ProposeIsr, IsrDecision]] = []
        self.proposals.decided = lambda proposal, decision: self.decisions.append((proposal, decision))
        node.cache.subscribe(self._metadata_changed)

    def _controller(self) -> int | None:
        known = self.node.image.controller_id
        return None if known == NO_BROKER else known

    def _metadata_changed(self, _: MetadataDelta) -> None:
        self.channel.metadata_changed()

    def _send(self, broker_id: int, request: Request[T], timeout_ms: int) -> asyncio.Future[T]:
        return self.network.send(self.node.broker_id, broker_id, request, timeout_ms)

    async def answer(self, request: Request[T], caller: Caller | None = None) -> T:
        """The answer to a request of any client."""
        connection = BrokerConnection("tester")
        _, frame = connection.send(request)
        answer = self.dispatcher.dispatch(memoryview(bytes(frame)[4:]), cast("Any", caller or Caller(BROKER)))
        parts = await answer if isinstance(answer, Awaitable) else answer
        data = b"".join(bytes(part) for part in cast("list[bytes]", parts))
        while data:
            buffer = connection.get_buffer()
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            response = connection.buffer_updated(size)
            data = data[size:]
        assert response is not None
        return cast("T", response.value)


class Network:
    """Carries requests between brokers. `faults` are asked about each request, by sender, receiver and API key."""

    def __init__(self) -> None:
        self.nodes: dict[int, ControlNode] = {}
        #: Requests that arrived, by API key.
        self.arrived: list[int] = []
        #: Whether the answer to a request is lost, although it was executed.
        self.loses_answer: Callable[[int, int, int], bool] = lambda *_: False
        #: Called before a request is executed.
        self.before: Callable[[int, int, int], Awaitable[object] | None] = lambda *_: None

    def send(self, sender: int, receiver: int, request: Request[T], timeout_ms: int) -> asyncio.Future[T]:
        return asyncio.ensure_future(self._sent(sender, receiver, request, timeout_ms))

    async def _sent(self, sender: int, receiver: int, request: Request[T], timeout_ms: int) -> T:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._carried(sender, receiver, request)
        except TimeoutError:
            raise RequestTimeoutError(f"broker {receiver} did not answer") from None

    async def _carried(self, sender: int, receiver: int, request: Request[T]) -> T:
        await asyncio.sleep(LATENCY_S)
        node = self.nodes.get(receiver)
        if node is None:
            raise BrokerConnectionError(f"no connection to broker {receiver}")
        self.arrived.append(request.api_key)
        held = self.before(sender, receiver, request.api_key)
        if held is not None:
            await held
        executed = node.node.spawn(node.answer(request))
        while self.nodes.get(receiver) is node and not executed.done():
            await asyncio.wait([executed], timeout=0.1)
        if self.nodes.get(receiver) is not node:
            raise BrokerConnectionError(f"broker {receiver} closed the connection")
        try:
            answer = executed.result()
        except ProtocolViolationError as error:
            raise BrokerConnectionError(f"broker {receiver} closed the connection: {error}") from error
        if self.loses_answer(sender, receiver, request.api_key):
            raise BrokerConnectionError(f"the connection to broker {receiver} broke")
        await asyncio.sleep(LATENCY_S)
        return cast("T", answer)


class ControlPlane(Cluster):
    """Three brokers on one ZooKeeper."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.network = Network()
        self.controls = self.network.nodes

    async def begin(self, *broker_ids: int) -> None:
        await super().begin(*broker_ids)
        for broker_id in broker_ids:
            self.controls[broker_id] = ControlNode(self.nodes[broker_id], self.network)

    def crash(self, broker_id: int) -> None:
        self.controls.pop(broker_id)
        super().crash(broker_id)

    async def others(self) -> list[ControlNode]:
        """The brokers that are not the controller."""
        controller = await self.controller()
        return [each for each in self.controls.values() if each.node is not controller]


def run(
    scenario: Callable[[ControlPlane], Awaitable[None]], seed: int = 1, brokers: tuple[int, ...] = (1, 2, 3)
) -> None:
    """Runs a scenario, and lets every image settle at its end."""
    loop = VirtualLoop(random.Random(seed))

    async def main() -> None:
        plane = ControlPlane(seed)
        await plane.begin(*brokers)
        await plane.settled()
        await scenario(plane)
        await plane.settled()
        for control in plane.controls.values():
            await control.proposals.aclose()
        for node in plane.nodes.values():
            await node.stop()

    try:
        loop.run_until_complete(main())
    finally:
        drop(loop)


__all__ = ["BROKER", "Caller", "ClientError", "ControlNode", "ControlPlane", "Network", "run"]
