"""A client that exceeded a quota is answered and then left unread; nobody else waits for it (KIP-219)."""

import asyncio
import contextlib
import struct
from collections.abc import Callable

from logtier.network.connection_limits import ConnectionLimits, ConnectionRules
from logtier.network.request_memory import RequestMemory
from logtier.network.server import ClientConnection, Response, Server, ServerLimits
from logtier.runtime.clock import SystemClock
from logtier.runtime.event_loop import run
from logtier.runtime.network import SocketNetwork

LIMITS = ServerLimits(request_bytes_max=1 << 20, connections_max=100, connections_per_host_max=100, idle_ms_max=60_000)
SOON_S = 20


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(name: bytes) -> bytes:
    """A frame as long as a request is at least."""
    return framed(name.ljust(20))


class Running:
    def __init__(self, dispatch: Callable[[memoryview, ClientConnection], Response]) -> None:
        self.limits = ConnectionLimits(ConnectionRules())
        self.server = Server(SocketNetwork(), SystemClock(), dispatch, LIMITS, shared=(RequestMemory(-1), self.limits))

    async def __aenter__(self) -> "Running":
        self.host, self.port = self.server.bind("127.0.0.1", 0)
        self.server.serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.stop()
        await asyncio.sleep(0)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)


async def close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def receive(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), SOON_S))
    return (await asyncio.wait_for(reader.readexactly(size), SOON_S)).rstrip()


def test_a_muted_client_is_answered_then_left_unread_and_nobody_else_waits() -> None:
    served: list[bytes] = []
    muted: list[ClientConnection] = []

    def mute_the_first(frame: memoryview, connection: ClientConnection) -> Response:
        served.append(bytes(frame).rstrip())
        if not muted:
            muted.append(connection)
            connection.mute(60_000)
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Running(mute_the_first) as running:
            reader, writer = await running.connect()
            writer.write(request(b"first") + request(b"second"))
            assert await receive(reader) == b"first"
            other_reader, other_writer = await running.connect()
            for number in range(20):
                other_writer.write(request(b"other %d" % number))
                assert await receive(other_reader) == b"other %d" % number
            assert b"second" not in served
            [connection] = muted
            assert not connection.is_idle_since(2**60)  # it is not silent, it is not listened to
            connection.mute(1)
            assert await receive(reader) == b"second"
            await close(writer, other_writer)

    run(main())


def test_a_client_that_goes_away_while_it_is_muted_leaves_nothing_behind() -> None:
    def mute_all(frame: memoryview, connection: ClientConnection) -> Response:
        connection.mute(60_000)
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Running(mute_all) as running:
            reader, writer = await running.connect()
            writer.write(request(b"first"))
            assert await receive(reader) == b"first"
            await close(writer)

    run(main())


def test_connections_that_come_too_fast_are_closed_and_others_are_served() -> None:
    def echo(frame: memoryview, _: ClientConnection) -> Response:
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Running(echo) as running:
            waits = iter([0, 5, 0])
            running.limits.host_wait_ms = lambda host, now_ms: next(waits)
            first_reader, first_writer = await running.connect()
            first_writer.write(request(b"a"))
            assert await receive(first_reader) == b"a"
            second_reader, second_writer = await running.connect()
            second_writer.write(request(b"b"))
            with contextlib.suppress(ConnectionResetError):  # bytes of ours were unread
                assert await asyncio.wait_for(second_reader.read(), SOON_S) == b""
            third_reader, third_writer = await running.connect()
            third_writer.write(request(b"c"))
            assert await receive(third_reader) == b"c"
            await close(first_writer, second_writer, third_writer)

    run(main())
