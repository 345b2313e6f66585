"""A client that exceeded a quota is answered and then left unread; nobody else waits for it (KIP-219)."""

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Any

import pytest

from headwater.logtier.network.connection_limits import ConnectionLimits, ConnectionRules
from headwater.logtier.network.pending_answers import Response
from headwater.logtier.network.request_memory import RequestMemory
from headwater.logtier.network.server import ClientConnection, Server, ServerLimits, SharedLimits
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.event_loop import run
from headwater.logtier.runtime.network import SocketNetwork, Stream

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
        self.server = Server(
            SocketNetwork(), SystemClock(), dispatch, LIMITS, shared=SharedLimits(RequestMemory(-1), self.limits)
        )

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


async def receive_nothing(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.05)
        return False
    return True


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
            connection.mute(1)  # of two times the longer one counts
            assert await receive_nothing(reader)
            connection._unmute()
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


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">i", LIMITS.request_bytes_max) + bytes(1 << 16), request(b"whole")]
)
def test_a_connection_that_came_too_fast_is_left_unread_until_it_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[int] = []
    faults: list[dict[str, Any]] = []
    monkeypatch.setattr(ClientConnection, "buffer_updated", lambda _, size: received.append(size))

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        async with Running(lambda *_: None) as running:
            running.limits.host_wait_ms = lambda host, now_ms: 20
            reader, writer = await running.connect()
            writer.write(sent)
            writer.write_eof()
            with contextlib.suppress(ConnectionResetError):  # bytes of ours were unread
                assert await asyncio.wait_for(reader.read(), SOON_S) == b""
            await close(writer)

    run(main())
    assert received == []
    assert faults == []
    assert caplog.records == []


class Pausing:
    """A handler that begins with a pause, and notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.made, self.lost = asyncio.Event(), asyncio.Event()

    def connection_made(self, stream: Stream) -> None:
        self.stream = stream
        self.heard.append("made")
        stream.pause_reading()
        self.made.set()

    def get_buffer(self) -> memoryview:
        return memoryview(bytearray(100))

    def buffer_updated(self, size: int) -> None:
        self.heard.append(f"{size} bytes")

    def secured(self, certificate: bytes | None) -> None: ...

    def writing_done(self) -> None: ...

    def connection_lost(self, error: OSError | None) -> None:
        self.heard.append("lost")
        self.lost.set()


def test_a_connection_that_its_handler_pauses_at_once_is_read_only_when_it_goes_on() -> None:
    async def main() -> None:
        handler = Pausing()
        listener = SocketNetwork().listen("127.0.0.1", 0, lambda: handler, backlog=5)
        listener.accept()
        _, writer = await asyncio.open_connection(listener.host, listener.port)
        writer.write(b"four")
        writer.write_eof()
        await asyncio.wait_for(handler.made.wait(), SOON_S)
        for _ in range(20):
            await asyncio.sleep(0)
        assert handler.heard == ["made"]
        handler.stream.resume_reading()
        await asyncio.wait_for(handler.lost.wait(), SOON_S)
        assert handler.heard == ["made", "4 bytes", "lost"]
        listener.close()
        await close(writer)

    run(main())
