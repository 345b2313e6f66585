"""Connections between simulated hosts: order, cuts in one direction, dead processes, machines without power."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from headwater.logtier.runtime.streams import Stream
from tests.simulation.simulated_network import Cables, SimulatedNetwork
from tests.simulation.virtual_loop import Process, VirtualLoop, drop

PORT = 9092


class Recorder:
    """A handler that keeps what it receives."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.received = b""
        self.ends: list[OSError | None] = []
        self._buffer = bytearray(4)

    def connection_made(self, stream: Stream) -> None:
        self.stream = stream

    def get_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, size: int) -> None:
        self.received += self._buffer[:size]

    def secured(self, certificate: bytes | None) -> None:
        raise AssertionError

    def writing_done(self) -> None:
        pass

    def connection_lost(self, error: OSError | None) -> None:
        self.ends.append(error)


class Pair:
    """A client's host and a server's."""

    def __init__(self) -> None:
        self.cables = Cables(random.Random(1))
        self.process = Process("server")
        self.server = SimulatedNetwork(self.cables, "server", self.process, random.Random(2))
        self.client = SimulatedNetwork(self.cables, "client", None, random.Random(3))
        self.accepted: list[Recorder] = []

    def serve(self) -> None:
        self.server.listen("server", PORT, self._make, backlog=1).accept()
        self.server.open()

    def _make(self) -> Recorder:
        self.accepted.append(Recorder())
        return self.accepted[-1]

    async def connect(self) -> tuple[Recorder, Recorder]:
        mine = Recorder()
        await self.client.connect("server", PORT, mine)
        await asyncio.sleep(0.1)
        return mine, self.accepted[-1]


def send(recorder: Recorder, data: bytes) -> None:
    assert recorder.stream is not None
    recorder.stream.write((data,))


def run(scenario: Callable[[Pair], Awaitable[None]]) -> None:
    loop = VirtualLoop(random.Random(1))

    async def main() -> None:
        await scenario(Pair())

    try:
        loop.run_until_complete(main())
    finally:
        drop(loop)


def test_bytes_arrive_in_order_in_both_directions() -> None:
    async def scenario(pair: Pair) -> None:
        pair.serve()
        mine, theirs = await pair.connect()
        for number in range(20):
            send(mine, b"%d," % number)
            send(theirs, b"%d;" % number)
        await asyncio.sleep(1)
        assert theirs.received == b"".join(b"%d," % number for number in range(20))
        assert mine.received == theirs.received.replace(b",", b";")

    run(scenario)


def test_a_cut_holds_one_direction_until_it_heals_and_new_connections_too() -> None:
    async def scenario(pair: Pair) -> None:
        pair.serve()
        mine, theirs = await pair.connect()
        route = pair.cables.route("server", "client")
        route.is_cut = True
        send(mine, b"there")
        send(theirs, b"back")
        connecting = asyncio.create_task(pair.client.connect("server", PORT, Recorder()))
        await asyncio.sleep(10)
        assert (theirs.received, mine.received, connecting.done()) == (b"there", b"", False)
        route.heal()
        await asyncio.sleep(1)
        assert (mine.received, connecting.done()) == (b"back", True)

    run(scenario)


def test_a_cancelled_connection_is_ended_at_the_server() -> None:
    async def scenario(pair: Pair) -> None:
        pair.serve()
        pair.cables.route("server", "client").is_cut = True
        mine = Recorder()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await pair.client.connect("server", PORT, mine)
        await asyncio.sleep(1)
        assert mine.stream is None
        assert pair.accepted[0].ends == [None]

    run(scenario)


def test_a_killed_process_ends_its_connections_and_what_it_sent_before_arrives() -> None:
    async def scenario(pair: Pair) -> None:
        pair.serve()
        mine, theirs = await pair.connect()
        send(theirs, b"last")
        pair.process.kill()
        pair.server.end(silently=False)
        await asyncio.sleep(1)
        assert (mine.received, mine.ends) == (b"last", [None])
        with pytest.raises(ConnectionRefusedError):
            await pair.client.connect("server", PORT, Recorder())

    run(scenario)


def test_a_machine_without_power_is_silent_and_resets_old_connections_when_it_is_back() -> None:
    async def scenario(pair: Pair) -> None:
        pair.serve()
        mine, _ = await pair.connect()
        pair.process.kill()
        pair.server.end(silently=True)
        send(mine, b"?")
        connecting = asyncio.create_task(pair.client.connect("server", PORT, Recorder()))
        await asyncio.sleep(5)
        assert (mine.ends, connecting.done()) == ([], False)
        pair.server = SimulatedNetwork(pair.cables, "server", Process("again"), random.Random(4))
        pair.serve()
        send(mine, b"!")
        await asyncio.sleep(1)
        assert isinstance(mine.ends[0], ConnectionResetError)
        assert connecting.done()

    run(scenario)


def test_a_frozen_process_receives_what_arrived_when_it_is_thawed() -> None:
    async def scenario(pair: Pair) -> None:
        pair.serve()
        mine, theirs = await pair.connect()
        pair.process.is_frozen = True
        send(mine, b"late")
        await asyncio.sleep(5)
        assert theirs.received == b""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.thaw(pair.process)
        await asyncio.sleep(0.1)
        assert theirs.received == b"late"

    run(scenario)
