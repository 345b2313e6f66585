"""The server on real sockets, with a dispatch that the test decides."""

import asyncio
import contextlib
import dataclasses
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.logtier.network.connection_limits import ConnectionLimits, ConnectionRules
from headwater.logtier.network.pending_answers import Response
from headwater.logtier.network.request_memory import RequestMemory
from headwater.logtier.network.server import (
    SLOW_REQUEST_MS,
    ClientConnection,
    Server,
    ServerLimits,
    SharedLimits,
)
from headwater.logtier.protocol.errors import ProtocolViolationError
from headwater.logtier.runtime.clock import Clock, SystemClock
from headwater.logtier.runtime.event_loop import run
from headwater.logtier.runtime.network import FileSlice, SocketNetwork
from headwater.logtier.security.listener import ListenerSecurity
from headwater.logtier.security.sasl import PlainServer
from headwater.logtier.security.sasl_session import SaslListener
from tests.manual_clock import ManualClock

LIMITS = ServerLimits(request_bytes_max=1 << 20, connections_max=100, connections_per_host_max=100, idle_ms_max=60_000)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(number: int, size: int = 20) -> bytes:
    return framed(struct.pack(">q", number) + bytes(size))


class Running:
    def __init__(
        self,
        dispatch: Callable[[memoryview, ClientConnection], object],
        limits: ServerLimits = LIMITS,
        clock: Clock | None = None,
    ) -> None:
        self.server = Server(SocketNetwork(), clock or SystemClock(), dispatch, limits)  # type: ignore[arg-type]

    async def __aenter__(self) -> "Running":
        self.host, self.port = self.server.bind("127.0.0.1", 0)
        self.server.serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.stop()
        await asyncio.sleep(0)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)


def echo(frame: memoryview, _: ClientConnection) -> Response:
    return [framed(bytes(frame))]


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_true():  # noqa: ASYNC110 (the server tells nobody what it has received)
            await asyncio.sleep(0.002)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def test_pipelined_requests_are_answered_in_their_order() -> None:
    def sometimes_later(frame: memoryview, connection: ClientConnection) -> Response | Awaitable[Response]:
        async def later() -> Response:
            await asyncio.sleep(0.001)
            return echo(frame, connection)

        return later() if frame[7] % 3 == 0 else echo(frame, connection)

    async def main() -> None:
        async with Running(sometimes_later) as running:
            reader, writer = await running.connect()
            sent = b"".join(request(number, 10 + number * 50) for number in range(100))
            writer.write(sent)
            assert await reader.readexactly(len(sent)) == sent
            await close(writer)

    run(main())


def test_a_slice_of_a_file_arrives_between_its_neighbours(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "segment").write_bytes(data)

    async def main() -> None:
        with (tmp_path / "segment").open("rb") as file:
            part = FileSlice(file.fileno(), 1000, len(data) - 2000, file)
            async with Running(lambda frame, _: [b"head", part, b"tail" + frame]) as running:
                reader, writer = await running.connect()
                for number in range(2):
                    writer.write(request(number))
                    expected = b"head" + data[1000:-1000] + b"tail" + request(number)[4:]
                    assert await reader.readexactly(len(expected)) == expected
                await close(writer)

    run(main())


def test_a_slow_consumer_waits_alone_and_holds_one_response() -> None:
    served: list[int] = []

    def large(frame: memoryview, connection: ClientConnection) -> Response:
        served.append(frame[7])
        return [bytes(8 << 20)] if frame[7] < 100 else echo(frame, connection)

    async def main() -> None:
        async with Running(large) as running:
            slow, slow_writer = await running.connect()
            for number in range(3):
                slow_writer.write(request(number))
            await slow_writer.drain()
            reader, writer = await running.connect()
            for _ in range(20):
                writer.write(request(100))
                await reader.readexactly(len(request(100)))
            assert served.count(0) == 1
            assert 1 not in served
            assert len(await slow.readexactly(3 * (8 << 20))) == 3 * (8 << 20)
            assert [number for number in served if number < 100] == [0, 1, 2]
            await close(writer)
            await close(slow_writer)

    run(main())


def test_a_violation_closes_its_connection_with_one_log_line_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def picky(frame: memoryview, connection: ClientConnection) -> Response:
        if frame[7] == 13:
            raise ProtocolViolationError("thirteen")
        return echo(frame, connection)

    async def main() -> None:
        async with Running(picky) as running:
            reader, writer = await running.connect()
            bad_reader, bad_writer = await running.connect()
            bad_writer.write(request(13))
            assert await bad_reader.read() == b""
            writer.write(request(1))
            assert await reader.readexactly(len(request(1))) == request(1)
            await close(writer)
            await close(bad_writer)

    run(main())
    assert [record.getMessage() for record in caplog.records] == ["closed the connection of 127.0.0.1: thirteen"]


@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1])
def test_a_hostile_length_closes_the_connection(length: int, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Running(echo) as running:
            reader, writer = await running.connect()
            writer.write(struct.pack(">i", length) + b"xxxx")
            assert await reader.read() == b""
            await close(writer)

    run(main())
    assert len(caplog.records) == 1


def test_a_client_that_leaves_in_the_middle_of_a_request_or_a_wait_is_forgotten() -> None:
    waits: list[asyncio.Future[Response]] = []
    cancelled: list[bool] = []

    def wait(frame: memoryview, _: ClientConnection) -> Awaitable[Response]:
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: cancelled.append(done.cancelled()))
        waits.append(future)
        return future

    async def main() -> None:
        async with Running(wait) as running:
            _, half = await running.connect()
            half.write(request(1)[:10])
            _, waiting = await running.connect()
            waiting.write(request(2))
            await until(lambda: len(running.server._connections) == 2 and len(waits) == 1)
            await close(half)
            await close(waiting)
            await until(lambda: not running.server._connections)

    run(main())
    assert cancelled == [True]


def test_connections_over_the_limit_are_refused_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    limits = ServerLimits(request_bytes_max=1000, connections_max=2, connections_per_host_max=100, idle_ms_max=60_000)

    async def main() -> None:
        async with Running(echo, limits) as running:
            first, second = await running.connect(), await running.connect()
            for reader, writer in (first, second):
                writer.write(request(1))
                await reader.readexactly(len(request(1)))
            third_reader, third_writer = await running.connect()
            assert await third_reader.read() == b""
            await close(third_writer)
            await close(first[1])
            await until(lambda: len(running.server._connections) == 1)
            reader, writer = await running.connect()
            writer.write(request(2))
            assert await reader.readexactly(len(request(2))) == request(2)
            await close(writer)
            await close(second[1])

    run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "refused a connection from 127.0.0.1: 2 are open (max.connections)"
    ]


def test_a_port_in_use_is_an_error_of_bind() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(OSError, match="in use"):
                Server(SocketNetwork(), SystemClock(), echo, LIMITS).bind("127.0.0.1", taken.getsockname()[1])

    run(main())


def test_large_requests_beyond_the_memory_for_requests_wait_for_each_other_and_all_are_answered() -> None:
    limits = replace(LIMITS, queued_bytes_max=1 << 20)
    large = request(7, 900_000)

    async def main() -> None:
        async with Running(echo, limits) as running:
            clients = [await running.connect() for _ in range(5)]
            for _, writer in clients:
                writer.write(large[:300_000])
            memory = running.server._shared.memory
            await until(lambda: memory.is_waited_for)
            small_reader, small_writer = await running.connect()
            small_writer.write(request(1))
            assert await small_reader.readexactly(len(request(1))) == request(1)
            await close(clients[1][1])
            rest = [clients[index] for index in (0, 2, 3, 4)]
            for _, writer in rest:
                writer.write(large[300_000:])
            for reader, writer in rest:
                assert await reader.readexactly(len(large)) == large
                await close(writer)
            await close(small_writer)
            assert running.server._shared.memory.used_bytes == 0

    run(main())


def test_what_is_announced_and_not_sent_holds_up_nobody() -> None:
    large = request(7, 900_000)

    async def main() -> None:
        async with Running(echo, replace(LIMITS, queued_bytes_max=4 << 20)) as running:
            announcing = [await running.connect() for _ in range(10)]
            for _, writer in announcing:
                writer.write(large[:17_000])
            await until(lambda: running.server._shared.memory.used_bytes > 0)
            reader, writer = await running.connect()
            writer.write(large)
            assert await reader.readexactly(len(large)) == large
            for _, each in (*announcing, (reader, writer)):
                await close(each)

    run(main())


def test_a_whole_request_stays_in_the_budget_until_it_is_read_if_it_is_read_later() -> None:
    large = request(7, 900_000)

    async def main() -> None:
        connections: list[ClientConnection] = []
        is_read = asyncio.Event()

        def dispatch(frame: memoryview, connection: ClientConnection) -> Awaitable[Response]:
            async def later() -> Response:
                await is_read.wait()
                connection.release_request_memory()
                return echo(frame, connection)

            connection.keep_request_memory()
            connections.append(connection)
            return later()

        async with Running(dispatch, replace(LIMITS, queued_bytes_max=4 << 20)) as running:
            reader, writer = await running.connect()
            writer.write(large)
            await until(lambda: bool(connections))
            memory = running.server._shared.memory
            assert memory.used_bytes >= len(large)
            assert not connections[0].withholds_request_since(1 << 60)
            is_read.set()
            assert await reader.readexactly(len(large)) == large
            assert memory.used_bytes == 0
            await close(writer)

    run(main())


def test_a_request_that_comes_while_one_before_is_kept_is_counted_beside_it_and_stays_counted() -> None:
    large = request(7, 900_000)
    clock = ManualClock(0)

    async def main() -> None:
        connections: list[ClientConnection] = []
        is_read, is_answered = asyncio.Event(), asyncio.Event()

        def dispatch(frame: memoryview, connection: ClientConnection) -> Awaitable[Response]:
            async def later() -> Response:
                await is_read.wait()
                connection.release_request_memory()
                await is_answered.wait()
                return echo(frame, connection)

            connection.keep_request_memory()
            connections.append(connection)
            return later()

        async with Running(dispatch, replace(LIMITS, queued_bytes_max=4 << 20), clock) as running:
            reader, writer = await running.connect()
            memory = running.server._shared.memory
            writer.write(large + large[:600_000])
            await until(lambda: memory.used_bytes >= len(large) + 600_000)
            is_read.set()
            await until(lambda: memory.used_bytes < len(large) + 600_000)
            assert memory.used_bytes >= 600_000
            writer.write(large[600_000:])
            await until(lambda: connections[0]._framer.has_frame)
            assert memory.used_bytes >= len(large)
            # Others may wait for it: it is whole, and its client can do nothing about it.
            others = [await running.connect() for _ in range(3)]
            for _, other_writer in others:
                other_writer.write(large[:600_000])
            await until(lambda: memory.is_waited_for)
            assert not connections[0].withholds_request_since(1 << 60)
            is_answered.set()
            assert await reader.readexactly(2 * len(large)) == 2 * large
            for _, each in ((reader, writer), *others):
                await close(each)
            await until(lambda: memory.used_bytes == 0)

    run(main())


def test_who_has_not_logged_in_takes_no_memory_from_those_who_have() -> None:
    sasl = SaslListener({"PLAIN": lambda: PlainServer({})}, {}, 0, 1 << 20)
    shared = SharedLimits(RequestMemory(4 << 20), ConnectionLimits(ConnectionRules()), RequestMemory(1 << 20))
    open_listener = Server(SocketNetwork(), SystemClock(), echo, LIMITS, shared=shared)
    secured = Server(
        SocketNetwork(), SystemClock(), echo, LIMITS, ListenerSecurity("S", "SASL_PLAINTEXT", sasl=sasl), shared
    )
    large = request(7, 900_000)

    async def main() -> None:
        addresses = [server.bind("127.0.0.1", 0) for server in (open_listener, secured)]
        open_listener.serve()
        secured.serve()
        strangers = [await asyncio.open_connection(*addresses[1]) for _ in range(6)]
        for _, writer in strangers:
            writer.write(large[:600_000])
        await until(lambda: shared.memory_before_login.is_waited_for)
        assert shared.memory.used_bytes == 0
        reader, writer = await asyncio.open_connection(*addresses[0])
        writer.write(large)
        assert await reader.readexactly(len(large)) == large
        for _, each in (*strangers, (reader, writer)):
            await close(each)
        await until(lambda: shared.memory_before_login.used_bytes == 0)
        open_listener.stop()
        secured.stop()

    run(main())


def test_who_sends_a_part_of_a_large_request_and_no_more_does_not_keep_others_waiting_for_ever() -> None:
    limits = replace(LIMITS, idle_ms_max=600_000, queued_bytes_max=1 << 20)
    large = request(7, 900_000)
    clock = ManualClock(0)

    async def main() -> None:
        async with Running(echo, limits, clock) as running:
            slow, slow_writer = await running.connect()
            slow_writer.write(large[:300_000])
            await until(lambda: running.server._shared.memory.used_bytes > 300_000)
            clock.ms = SLOW_REQUEST_MS + 1
            running.server._check_idle()
            assert running.server._shared.memory.used_bytes > 300_000, "nobody waits: it has time"
            reader, writer = await running.connect()
            writer.write(large)
            await until(lambda: running.server._shared.memory.is_waited_for)
            running.server._check_idle()
            assert await slow.read() == b""
            assert await reader.readexactly(len(large)) == large
            await close(writer)
            await close(slow_writer)

    run(main())


class LateAnswers:
    """The first request is answered when the test says so, as a fetch that waits; all others at once."""

    def __init__(self) -> None:
        self.may_come = asyncio.Event()
        self.connections: list[ClientConnection] = []

    def dispatch(self, frame: memoryview, connection: ClientConnection) -> Response | Awaitable[Response]:
        answer = echo(frame, connection)

        async def later() -> Response:
            await self.may_come.wait()
            return answer

        if frame[7] != 1:
            return answer
        self.connections.append(connection)
        return later()


@pytest.mark.parametrize("is_seen_first", [True, False])
def test_a_large_request_behind_one_that_is_answered_late_keeps_nobody_waiting(is_seen_first: bool) -> None:
    limits = replace(LIMITS, idle_ms_max=600_000, queued_bytes_max=1 << 20)
    large = request(7, 900_000)

    async def main() -> None:
        answers = LateAnswers()
        async with Running(answers.dispatch, limits) as running:
            memory = running.server._shared.memory
            late, late_writer = await running.connect()
            late_writer.write(request(1) + large)
            await until(lambda: bool(answers.connections) and memory.used_bytes > 0)
            if is_seen_first:
                await until(lambda: answers.connections[0]._is_held_back)
            async with asyncio.timeout(10):
                for _ in range(2):
                    reader, writer = await running.connect()
                    writer.write(large)
                    assert await reader.readexactly(len(large)) == large
                    await close(writer)
            answers.may_come.set()
            assert await late.readexactly(len(request(1)) + len(large)) == request(1) + large
            await close(late_writer)
            await until(lambda: memory.used_bytes == 0)

    run(main())


def test_a_large_request_behind_an_answer_that_is_not_read_keeps_nobody_waiting() -> None:
    limits = replace(LIMITS, idle_ms_max=600_000, queued_bytes_max=1 << 20)
    large = request(7, 900_000)
    long_answer = framed(bytes(64 << 20))

    def dispatch(frame: memoryview, connection: ClientConnection) -> Response:
        return [long_answer] if frame[7] == 1 else echo(frame, connection)

    async def main() -> None:
        async with Running(dispatch, limits) as running:
            late, late_writer = await running.connect()
            late_writer.write(request(1) + large)
            await until(lambda: any(each._is_held_back for each in running.server._connections))
            reader, writer = await running.connect()
            writer.write(large)
            async with asyncio.timeout(10):
                assert await reader.readexactly(len(large)) == large
            await close(writer)
            assert await late.readexactly(len(long_answer) + len(large)) == long_answer + large
            await close(late_writer)

    run(main())


def test_a_request_that_was_held_back_behind_an_answer_has_its_time_from_then_on() -> None:
    limits = replace(LIMITS, idle_ms_max=600_000, queued_bytes_max=1 << 20)
    large = request(7, 900_000)
    clock = ManualClock(0)

    async def main() -> None:
        answers = LateAnswers()
        async with Running(answers.dispatch, limits, clock) as running:
            memory = running.server._shared.memory
            late, late_writer = await running.connect()
            late_writer.write(request(1) + large[:300_000])
            await until(lambda: bool(answers.connections) and answers.connections[0]._is_held_back)
            clock.ms = SLOW_REQUEST_MS + 1
            others = [await running.connect() for _ in range(2)]
            for _, writer in others:
                writer.write(large[:300_000])
            await until(lambda: memory.is_waited_for)
            running.server._check_idle()
            assert answers.connections[0] in running.server._connections, "it was kept from coming"
            await close(others[0][1])
            await close(others[1][1])
            await until(lambda: not memory.is_waited_for)
            answers.may_come.set()
            assert await late.readexactly(len(request(1))) == request(1)
            other, other_writer = await running.connect()
            other_writer.write(large[:300_000])
            await until(lambda: memory.is_waited_for)
            running.server._check_idle()
            assert answers.connections[0] in running.server._connections, "it has just got the turn"
            clock.ms += SLOW_REQUEST_MS + 1
            running.server._check_idle()
            assert await late.read() == b""
            other_writer.write(large[300_000:])
            assert await other.readexactly(len(large)) == large
            await close(other_writer)
            await close(late_writer)

    run(main())


def test_a_fault_of_ours_ends_its_connection_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def faulty(frame: memoryview, connection: ClientConnection) -> Response | Awaitable[Response]:
        async def later() -> Response:
            raise ZeroDivisionError("later")

        if frame[7] == 1:
            raise ZeroDivisionError("now")
        return later() if frame[7] == 2 else echo(frame, connection)

    async def main() -> None:
        async with Running(faulty) as running:
            reader, writer = await running.connect()
            for number in (1, 2):
                bad_reader, bad_writer = await running.connect()
                bad_writer.write(request(number))
                assert await bad_reader.read() == b""
                await close(bad_writer)
            writer.write(request(3))
            assert await reader.readexactly(len(request(3))) == request(3)
            await close(writer)

    run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "closed the connection of 127.0.0.1: now",
        "closed the connection of 127.0.0.1: later",
    ]


@pytest.mark.parametrize(("idle_ms_max", "is_closed"), [(60_000, True), (-1, False)])
def test_a_silent_connection_is_closed_unless_there_is_no_limit(idle_ms_max: int, is_closed: bool) -> None:
    clock = ManualClock(0)

    async def main() -> None:
        server = Server(SocketNetwork(), clock, echo, dataclasses.replace(LIMITS, idle_ms_max=idle_ms_max))
        host, port = server.bind("127.0.0.1", 0)
        server.serve()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request(1))
        assert await reader.readexactly(len(request(1))) == request(1)
        clock.ms += 10**9
        server._check_idle()
        writer.write(request(2))
        try:
            answer = await reader.read(len(request(2)))
        except ConnectionResetError:
            answer = b""
        assert answer == (b"" if is_closed else request(2))
        await close(writer)
        server.stop()
        await asyncio.sleep(0)

    run(main())
