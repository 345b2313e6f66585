"""A broker's connections to another broker in memory, on a virtual clock."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import ClientError
from headwater.logtier.client.security import PLAINTEXT, ClientSecurity
from headwater.logtier.peers.link import LinkContext
from headwater.logtier.peers.peers import Peers, Purpose
from headwater.logtier.peers.settings import BrokerAddress, PeerSettings
from tests.memory_network import ECHO, MemoryBroker, MemoryNetwork
from tests.virtual_time import LoopClock, run_virtually

HOST: Final = "broker-2"


def echo(text: str, api_key: int = ECHO, version: int = 0) -> Request[str]:
    """A request whose response is its own text."""
    return Request(api_key, version, False, text.encode(), lambda body: bytes(body).decode(), False)


class Cluster:
    """This broker's connections to broker 2, which is there unless a test removes it."""

    def __init__(self, security: ClientSecurity = PLAINTEXT, **settings: Any) -> None:
        self.network = MemoryNetwork()
        self.broker = self.network.brokers[HOST, 9092] = MemoryBroker()
        self.addresses: dict[int, BrokerAddress] = {2: BrokerAddress(HOST, 9092, 7)}
        self.security = security
        self.clock = LoopClock()
        context = LinkContext(self.network, self.clock, lambda: 0.5, bytes, PeerSettings("test", **settings))
        self.peers = Peers(self.addresses.get, lambda _: self.security, context)

    def send(self, text: str, timeout_ms: int | None = None) -> asyncio.Future[str]:
        return self.peers.send(2, Purpose.OFFSETS, echo(text), timeout_ms)

    async def call(self, text: str, timeout_ms: int | None = None) -> str:
        return await self.peers.call(2, Purpose.OFFSETS, echo(text), timeout_ms)

    @property
    def attempt_gaps_ms(self) -> list[int]:
        """Times between the attempts to connect."""
        times = [round(at_s * 1000) for at_s, _, _ in self.network.attempts]
        return [after - before for before, after in itertools.pairwise(times)]

    def received(self) -> list[str]:
        return [request.body.decode() for request in self.broker.requests]


async def error_of(future: asyncio.Future[Any] | Coroutine[Any, Any, Any]) -> ClientError:
    with pytest.raises(ClientError) as caught:
        await future
    return caught.value


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test on a virtual clock."""

    @functools.wraps(test)
    def run() -> None:
        run_virtually(test())

    return run


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if "peers" in record.name]
