"""Callers of a broker that fails in every way, by seed: each call ends once, with its own response or a typed error."""

from __future__ import annotations

import asyncio
import random
from typing import Final

import pytest

from headwater.logtier.client.errors import ClientError
from headwater.logtier.client.security import PLAINTEXT, ClientSecurity
from headwater.logtier.peers.peers import Purpose
from headwater.logtier.peers.settings import BrokerAddress
from tests.memory_network import MemoryBroker, MemoryRequest
from tests.peer_connections import HOST, Cluster, echo
from tests.scripted_sasl import ALICE, ScriptedSasl
from tests.virtual_time import run_virtually

SEEDS: Final = range(40)
CALLERS: Final = 8
CALLS: Final = 30


class FaultyBroker:
    """Serves one request of a connection at a time, after a random delay; fails at random until it is healed."""

    def __init__(self, cluster: Cluster, prng: random.Random) -> None:
        self.cluster = cluster
        self.prng = prng
        self.is_healed = False
        self.free_s: dict[int, float] = {}
        self.serve = cluster.broker.handler
        cluster.broker.handler = self.handle

    def handle(self, request: MemoryRequest) -> None:
        loop = asyncio.get_running_loop()
        key = id(request.connection)
        at_s = max(self.free_s.get(key, 0), loop.time()) + self.prng.choice([0, 0.001, 0.01, 0.2])
        if not self.is_healed and self.prng.random() < 0.01:
            at_s += 60
        self.free_s[key] = at_s
        loop.call_at(at_s, self.answer, request)

    def answer(self, request: MemoryRequest) -> None:
        stream = request.connection.stream
        if stream.is_closed:
            return
        fault = 1.0 if self.is_healed else self.prng.random()
        if fault < 0.01:
            stream.end(self.prng.choice([None, ConnectionResetError(104, "Connection reset by peer")]))
        elif fault < 0.02:
            stream.deliver(self.prng.randbytes(self.prng.randint(1, 40)))
        else:
            self.serve(request)

    async def disturb(self) -> None:
        """Takes the broker away, moves it, lets it freeze, and brings it back."""
        network, home = self.cluster.network, (HOST, 9092)
        for epoch in range(8, 20):
            await asyncio.sleep(self.prng.random() * 3)
            fault = self.prng.randrange(4)
            if fault == 0:
                network.brokers.pop(home, None)
                self.cluster.broker.end_connections()
            elif fault == 1:
                self.cluster.addresses[2] = BrokerAddress(HOST, 9092, epoch)
                self.cluster.peers.metadata_changed()
            elif fault == 2:
                self.cluster.broker.is_silent = True
            else:
                network.black_holes.add(home)
                self.cluster.broker.end_connections()
            await asyncio.sleep(self.prng.random() * 3)
            network.brokers[home] = self.cluster.broker
            network.black_holes.discard(home)
            self.cluster.broker.is_silent = False
        self.is_healed = True


async def caller(cluster: Cluster, name: int, prng: random.Random, outcomes: list[str | ClientError | None]) -> None:
    """Calls one after the other; some calls are cancelled, some have a short time limit."""
    for number in range(CALLS):
        text = f"{name}/{number}"
        purpose = prng.choice([Purpose.CONTROLLER, Purpose.OFFSETS])
        calling = asyncio.ensure_future(
            cluster.peers.call(2, purpose, echo(text), prng.choice([None, 50, 5_000, 60_000]))
        )
        if prng.random() < 0.1:
            asyncio.get_running_loop().call_later(prng.random() / 2, calling.cancel)
        await asyncio.wait((calling,))
        if calling.cancelled():
            outcomes.append(None)
        elif (error := calling.exception()) is not None:
            assert isinstance(error, ClientError), error
            outcomes.append(error)
        else:
            assert calling.result() == text, "the response of another call"
            outcomes.append(text)


def assert_order(broker: MemoryBroker) -> None:
    """The requests of one caller arrive in the order of its calls, on each connection."""
    for connection in broker.connections:
        last: dict[str, int] = {}
        for request in connection.requests:
            name, slash, number = request.body.decode(errors="replace").partition("/")
            if slash and name.isdigit():
                assert last.get(name, -1) < int(number)
                last[name] = int(number)


@pytest.mark.parametrize("security", [PLAINTEXT, ALICE], ids=["plain", "sasl"])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_call_ends_once_and_the_broker_is_found_again(seed: int, security: ClientSecurity) -> None:
    async def run() -> None:
        prng = random.Random(seed)
        cluster = Cluster(security)
        if security is ALICE:
            ScriptedSasl(cluster.broker, lifetime_ms=3_000)
        faulty = FaultyBroker(cluster, prng)
        outcomes: list[str | ClientError | None] = []
        disturbing = asyncio.ensure_future(faulty.disturb())
        await asyncio.gather(
            *(caller(cluster, name, random.Random(f"{seed}/{name}"), outcomes) for name in range(CALLERS))
        )
        await disturbing
        assert len(outcomes) == CALLERS * CALLS
        answered = sum(isinstance(outcome, str) for outcome in outcomes)
        assert answered > len(outcomes) / 10
        for _ in range(4):
            try:
                assert await cluster.peers.call(2, Purpose.CONTROLLER, echo("healed"), 120_000) == "healed"
                break
            except ClientError:
                pass  # of a connection that had been broken before
        else:
            raise AssertionError("the broker works, and no call does")
        assert_order(cluster.broker)
        await cluster.peers.aclose()
        await asyncio.sleep(100)
        assert cluster.broker.open_connections == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(run(), is_one_of_many=True)
