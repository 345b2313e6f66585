"""Slices that another process sends: what arrives, and what becomes of it when something goes wrong on the way."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from headwater.logtier.network.pending_answers import Response
from headwater.logtier.network.server import ClientConnection, Server, ServerLimits
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.cold_sender import PART_BYTES, PARTS_MAX, ColdSender, Sender, Sent
from headwater.logtier.runtime.event_loop import run
from headwater.logtier.runtime.network import FileSlice, SocketNetwork, UnreadableError
from headwater.logtier.runtime.streams import Part
from tests.stopped_process import stop

LIMITS = ServerLimits(request_bytes_max=1 << 20, connections_max=100, connections_per_host_max=100, idle_ms_max=60_000)
REQUEST = struct.pack(">i", 20) + bytes(20)
PATIENCE_S = 120  # on a busy machine the process gets little time
POLL_S = 0.002
OWNER = object()


@pytest.fixture(scope="module")
def data() -> bytes:
    return os.urandom(5 * PART_BYTES)


@pytest.fixture
def file(tmp_path: Path, data: bytes) -> Iterator[int]:
    (tmp_path / "segment").write_bytes(data)
    with (tmp_path / "segment").open("rb") as file:
        yield file.fileno()


def cold(file: int, position: int, size: int) -> FileSlice:
    return FileSlice(file, position, size, OWNER, is_cold=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (another process decides)
            await asyncio.sleep(POLL_S)


class Running:
    """A server that answers each request by the next of some responses; the last one again and again."""

    def __init__(self, sender: Sender, *responses: Sequence[Part]) -> None:
        self.left = list(responses)
        self.lost: list[UnreadableError] = []
        self.server = Server(SocketNetwork(sender), SystemClock(), self.answer, LIMITS)
        self.server.on_unreadable = self.lost.append
        self.host, self.port = self.server.bind("127.0.0.1", 0)
        self.server.serve()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    def answer(self, _: memoryview, __: ClientConnection) -> Response | Awaitable[Response]:
        return list(self.left[0] if len(self.left) == 1 else self.left.pop(0))

    @contextlib.asynccontextmanager
    async def client(self, requests: int = 1) -> AsyncIterator[asyncio.StreamReader]:
        """A connection that has sent so many requests at once."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(REQUEST * requests)
        yield reader
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def received(self, size: int, requests: int = 1) -> bytes:
        async with self.client(requests) as reader:
            return await asyncio.wait_for(reader.readexactly(size), PATIENCE_S)


@contextlib.asynccontextmanager
async def started(bytes_per_s: int = 0) -> AsyncIterator[ColdSender]:
    sender = ColdSender(SystemClock(), lambda: bytes_per_s)
    try:
        await until(sender.is_ready)
        yield sender
    finally:
        sender.close()


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def halted(sender: ColdSender) -> Iterator[int]:
    """The process does nothing for a while, so what it is given stays with it."""
    process = sender.process_id
    assert process is not None
    stop(process)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


@pytest.mark.parametrize("bytes_per_s", [0, 400_000_000])
def test_cold_slices_arrive_between_their_neighbours(file: int, data: bytes, bytes_per_s: int) -> None:
    parts: list[Part] = [
        b"head",
        cold(file, 3, 3 * PART_BYTES + 17),
        b"between",
        FileSlice(file, 100, 200, OWNER),
        cold(file, 7, 1),
        cold(file, 5, PART_BYTES),
        b"tail",
    ]
    expected = (
        b"head"
        + data[3 : 3 * PART_BYTES + 20]
        + b"between"
        + data[100:300]
        + data[7:8]
        + data[5 : 5 + PART_BYTES]
        + b"tail"
    )

    async def main() -> None:
        async with started(bytes_per_s) as sender:
            with Running(sender, parts) as running:
                assert await running.received(2 * len(expected), requests=2) == 2 * expected

    run(main())


def test_the_process_sends_them_and_nothing_else_does(file: int, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with started() as sender:
            with Running(sender, [b"head", cold(file, 0, len(data))]) as running:

                def fail(*_: object) -> int:
                    raise AssertionError("sent by the event loop")

                monkeypatch.setattr(os, "sendfile", fail)
                assert await running.received(4 + len(data)) == b"head" + data

    run(main())


def test_requests_that_came_meanwhile_are_answered_after_it_in_their_order(file: int, data: bytes) -> None:
    async def main() -> None:
        async with started() as sender:
            with Running(sender, [cold(file, 0, len(data))], [b"second"], [b"third"]) as running:
                with halted(sender):
                    async with running.client(requests=3) as reader:
                        await until(lambda: len(running.left) == 2)
                        os.kill(sender.process_id or 0, signal.SIGCONT)
                        received = await asyncio.wait_for(reader.readexactly(len(data) + 11), PATIENCE_S)
                assert received == data + b"secondthird"

    run(main())


def test_a_slow_client_delays_itself_alone(file: int, data: bytes) -> None:
    async def main() -> None:
        async with started() as sender:
            with Running(sender, [cold(file, 0, len(data))] * 4) as running:
                async with contextlib.AsyncExitStack() as stack:
                    slow = [await stack.enter_async_context(running.client()) for _ in range(3)]
                    for _ in range(3):
                        assert await running.received(4 * len(data)) == 4 * data
                    for reader in slow:
                        for _ in range(4):
                            assert await asyncio.wait_for(reader.readexactly(len(data)), PATIENCE_S) == data

    run(main())


def test_many_clients_queue_up_at_the_process(file: int, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with started() as sender:
            with Running(sender, [cold(file, 0, len(data))]) as running:
                clients = PARTS_MAX + 4

                def fail(*_: object) -> int:
                    raise AssertionError("the event loop would wait for the device")

                monkeypatch.setattr(os, "sendfile", fail)
                with halted(sender):
                    readings = [asyncio.create_task(running.received(len(data))) for _ in range(clients)]
                    await until(lambda: len(running.server._connections) == clients and all_handed(running))
                    assert not sender.is_ready(), "for readers who are not there yet"
                assert set(await asyncio.gather(*readings)) == {data}

    run(main())


def test_a_client_that_goes_away_costs_nobody_else_anything(file: int, data: bytes) -> None:
    async def main() -> None:
        async with started() as sender:
            with Running(sender, [cold(file, 0, len(data))] * 4) as running:
                with halted(sender):
                    async with running.client():
                        await until(lambda: any_handed(running))
                    await until(lambda: not running.server._connections)
                assert (await running.received(4 * len(data)))[: len(data)] == data
                assert running.lost == []

    run(main())


def all_handed(running: Running) -> bool:
    return all(each._stream is not None and each._stream.is_writing for each in running.server._connections)


def any_handed(running: Running) -> bool:
    return any(each._stream is not None and each._stream.is_writing for each in running.server._connections)


def test_the_end_of_the_process_ends_the_connections_it_was_sending_to_and_no_others(
    file: int, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with started() as sender:
            with Running(sender, [b"hot"], [b"head", cold(file, 0, len(data))]) as running:
                async with running.client() as hot:
                    assert await hot.readexactly(3) == b"hot"
                    with halted(sender) as process:
                        async with running.client() as reader:
                            await until(lambda: any_handed(running))
                            os.kill(process, signal.SIGKILL)
                            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"head"
                    await until(lambda: not is_alive(process))
                    assert not sender.is_ready()
                    assert len(running.server._connections) == 1
                    # The event loop does its work until it is started again.
                    assert await running.received(4 + len(data)) == b"head" + data

    run(main())
    [line] = [record for record in caplog.records if "the process that sends old data ended" in record.message]
    assert "(1)" in line.message


def test_a_server_that_stops_ends_what_is_being_sent(file: int, data: bytes) -> None:
    async def main() -> None:
        async with started() as sender:
            with Running(sender, [b"head", cold(file, 0, len(data))]) as running, halted(sender):
                async with running.client() as reader:
                    await until(lambda: any_handed(running))
                    running.server.stop()
                    # At once, though the process still has a descriptor of the socket.
                    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"head"

    run(main())


def test_the_process_ends_with_its_owner_and_is_not_there_before_it_is_wanted(file: int) -> None:
    async def main() -> None:
        sender = ColdSender(SystemClock())
        with Running(sender, [b"head", FileSlice(file, 0, 100, OWNER)]) as running:
            await running.received(104)
            assert not sender.process_id
            assert not sender.is_ready(), "it has yet to start"
            await until(sender.is_ready)
            process = sender.process_id
            assert process is not None
            sender.close()
            sender.close()
            assert not is_alive(process)
            assert not sender.is_ready()

    run(main())


def test_signals_that_go_to_all_processes_do_not_end_it(file: int, data: bytes) -> None:
    async def main() -> None:
        async with started() as sender:
            assert sender.process_id is not None
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(sender.process_id, number)
            with Running(sender, [cold(file, 0, len(data))]) as running:
                assert await running.received(len(data)) == data
            assert sender.process_id is not None

    run(main())


def test_the_process_ends_when_its_owner_is_killed() -> None:
    script = (
        "import asyncio\n"
        "from headwater.logtier.runtime.clock import SystemClock\n"
        "from headwater.logtier.runtime.cold_sender import ColdSender\n"
        "async def main():\n"
        "    sender = ColdSender(SystemClock())\n"
        "    while not sender.is_ready():\n"
        "        await asyncio.sleep(0.01)\n"
        "    print(sender.process_id, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )

    async def main() -> None:
        owner = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
        assert owner.stdout is not None
        process = int(await asyncio.wait_for(owner.stdout.readline(), PATIENCE_S))
        assert is_alive(process)
        owner.kill()
        await owner.wait()
        await until(lambda: not is_alive(process))

    asyncio.run(main())


def test_the_event_loop_sends_where_no_process_can_be_started(
    file: int, data: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        sender = ColdSender(SystemClock())
        with Running(sender, [b"head", cold(file, 0, len(data))]) as running:
            for _ in range(3):
                assert not sender.is_ready()
                assert await running.received(4 + len(data)) == b"head" + data
            sender.close()

    run(main())
    assert [record.levelname for record in caplog.records] == ["WARNING"], "once, not for each part"


class Failing:
    """A sender whose parts all fail in one way."""

    def __init__(self, sent: int, error: OSError) -> None:
        self.sent = sent
        self.error = error

    def is_ready(self) -> bool:
        return True

    def send(self, client: int, file: int, position: int, size: int, done: Sent) -> bool:
        asyncio.get_running_loop().call_soon(done, self.sent, self.error)
        return True


@pytest.mark.parametrize(("code", "is_the_files"), [(errno.EIO, True), (errno.EPIPE, False)])
def test_the_owner_of_a_slice_is_told_of_the_disks_faults_only(file: int, code: int, is_the_files: bool) -> None:
    async def main() -> None:
        with Running(Failing(0, OSError(code, os.strerror(code))), [b"head", cold(file, 0, 100)]) as running:
            async with running.client() as reader:
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"head"
            assert [each.owner for each in running.lost] == [OWNER] * is_the_files

    run(main())


def test_a_file_that_is_shorter_than_its_slice_ends_the_connection_only(file: int, data: bytes) -> None:
    async def main() -> None:
        async with started() as sender:
            with Running(sender, [b"head", cold(file, len(data) - 5, 100)]) as running:
                async with running.client() as reader:
                    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"head" + data[-5:]
                assert running.lost == []
                assert sender.process_id is not None

    run(main())


def test_its_descriptors_are_closed_when_a_part_is_sent(file: int, data: bytes) -> None:
    async def main() -> None:
        async with started() as sender:
            with Running(sender, [cold(file, 0, len(data))]) as running:
                folder = f"/proc/{sender.process_id}/fd"
                before = len(os.listdir(folder))
                for _ in range(5):
                    await running.received(len(data))
                await until(lambda: len(os.listdir(folder)) == before)

    run(main())


def test_a_socket_that_takes_nothing_is_given_back(file: int) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(bytes(1 << 16))
            async with started() as sender:
                told: asyncio.Future[tuple[int, OSError | None]] = asyncio.get_running_loop().create_future()
                assert sender.send(ours.fileno(), file, 0, 100, lambda sent, error: told.set_result((sent, error)))
                assert await asyncio.wait_for(told, PATIENCE_S) == (0, None)

    run(main())
