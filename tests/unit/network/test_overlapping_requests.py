"""Produce requests that wait for their acknowledgement while the next ones of their connection are carried out."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.network.pending_answers import OVERLAPPING_BYTES_MAX, OVERLAPPING_MAX, Response
from headwater.logtier.network.server import ClientConnection, Server, ServerLimits, shared_limits
from headwater.logtier.protocol.errors import ProtocolViolationError
from headwater.logtier.protocol.messages import PRODUCE_KEY
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.network import SocketNetwork

LIMITS = ServerLimits(request_bytes_max=8 << 20, connections_max=9, connections_per_host_max=9, idle_ms_max=60_000)
FETCH_KEY = 1
HEAD = struct.Struct(">hI")


class Client:
    """A connection without a socket: what it serves, and what it answers."""

    peer_host = "127.0.0.1"
    is_writing = False
    unsent_bytes = 0

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_reading = True
        #: Numbers of the requests that were dispatched, and the answers that their futures await.
        self.served: list[int] = []
        self.waits: dict[int, asyncio.Future[Response]] = {}
        #: Requests answered at once; by default each waits.
        self.at_once: set[int] = set()
        #: Requests that close the connection.
        self.violations: set[int] = set()
        #: Requests that wait before they are carried out.
        self.not_carried_out: set[int] = set()
        server = Server(SocketNetwork(), SystemClock(), self.dispatch, LIMITS)
        self.connection = ClientConnection(server, SystemClock(), self.dispatch, LIMITS, shared_limits(LIMITS))
        self.connection.connection_made(cast("Any", self))

    def dispatch(self, frame: memoryview, connection: ClientConnection) -> Response | Awaitable[Response]:
        key, number = HEAD.unpack_from(frame)
        self.served.append(number)
        if number in self.violations:
            raise ProtocolViolationError("not like this")
        if number in self.at_once:
            return [b"%d " % number]
        wait = self.waits[number] = asyncio.get_running_loop().create_future()
        if key == PRODUCE_KEY and number not in self.not_carried_out:
            connection.carried_out()
        return wait

    def send(self, *numbers: int, key: int = PRODUCE_KEY, size: int = 0) -> None:
        left = memoryview(b"".join(framed(number, key, size) for number in numbers))
        while left:
            buffer = self.connection.get_buffer()
            taken = min(len(buffer), len(left))
            buffer[:taken] = left[:taken]
            self.connection.buffer_updated(taken)
            left = left[taken:]

    async def answer(self, *numbers: int) -> None:
        for number in numbers:
            self.waits[number].set_result([b"%d " % number])
        await asyncio.sleep(0)

    def write(self, parts: Sequence[Any]) -> None:
        self.written.append(b"".join(map(bytes, parts)))

    def close(self) -> None:
        self.connection.connection_lost(None)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


def framed(number: int, key: int, size: int) -> bytes:
    frame = HEAD.pack(key, number) + bytes(max(size, 10))
    return struct.pack(">i", len(frame)) + frame


def runs(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    async def main() -> None:
        await test()

    def run() -> None:
        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@runs
async def test_those_that_are_carried_out_wait_together_and_are_answered_in_their_order() -> None:
    client = Client()
    client.send(1, 2, 3)
    assert client.served == [1, 2, 3]
    await client.answer(2, 3)
    assert client.written == []
    await client.answer(1)
    assert client.written == [b"1 2 3 "], "in one system call"
    assert client.is_reading


@runs
async def test_an_answer_that_is_there_at_once_waits_for_the_earlier_ones() -> None:
    client = Client()
    client.at_once = {2}
    client.send(1, 2, 3)
    assert (client.served, client.written) == ([1, 2, 3], [])
    await client.answer(1)
    assert client.written == [b"1 2 "]


@runs
async def test_a_request_of_another_kind_waits_for_the_answers_and_a_produce_for_it() -> None:
    client = Client()
    client.send(1)
    client.send(2, key=FETCH_KEY)
    client.send(3)
    assert client.served == [1]
    assert not client.is_reading
    await client.answer(1)
    assert client.served == [1, 2]
    await client.answer(2)
    assert client.served == [1, 2, 3]
    assert b"".join(client.written) == b"1 2 "


@runs
async def test_a_produce_that_waits_before_its_append_is_waited_for() -> None:
    client = Client()
    client.not_carried_out = {2}
    client.send(1, 2, 3)
    assert client.served == [1, 2]
    client.connection.carried_out()  # after a wait for the coordinator, say
    await asyncio.sleep(0)
    assert client.served == [1, 2, 3], "though nothing further came"


@runs
async def test_their_number_and_their_bytes_are_bounded() -> None:
    client = Client()
    client.send(*range(OVERLAPPING_MAX + 2))
    assert client.served == list(range(OVERLAPPING_MAX))
    await client.answer(0)
    assert client.served[-1] == OVERLAPPING_MAX
    large = Client()
    large.send(1, 2, 3, size=OVERLAPPING_BYTES_MAX // 2)
    assert large.served == [1, 2]
    await large.answer(1)
    assert large.served == [1, 2, 3]


@runs
async def test_a_muted_client_is_served_no_further_one_but_has_its_answers() -> None:
    client = Client()
    client.send(1)
    client.connection.mute(60_000)
    client.send(2)
    assert client.served == [1]
    await client.answer(1)
    assert client.written == [b"1 "]
    client.close()


@runs
async def test_a_short_pause_does_not_end_a_long_one() -> None:
    client = Client()
    client.send(1)
    client.connection.mute(60_000)
    client.connection.mute(1)
    await asyncio.sleep(0.01)
    client.send(2)
    assert client.served == [1]
    client.close()


@runs
async def test_a_request_that_closes_the_connection_does_so_behind_the_answers_before_it() -> None:
    client = Client()
    client.violations = {3}
    client.send(1, 2, 3, 4)
    assert client.served == [1, 2, 3]
    await client.answer(2)
    await client.answer(1)
    assert client.written == [b"1 2 "]
    assert client.connection._stream is None
    assert client.served == [1, 2, 3]


@runs
async def test_a_client_that_leaves_ends_all_waits() -> None:
    client = Client()
    client.send(1, 2, 3)
    client.close()
    await asyncio.sleep(0)
    assert [wait.cancelled() for wait in client.waits.values()] == [True, True, True]
    assert client.written == []


@runs
async def test_a_violation_ends_the_connection_behind_the_answers_before_it() -> None:
    client = Client()
    client.send(1, 2, 3)
    client.waits[2].set_exception(ProtocolViolationError("two"))
    await client.answer(1)
    assert client.written == [b"1 "]
    assert client.waits[3].cancelled()


@runs
async def test_a_frame_that_will_be_rejected_closes_the_connection_behind_the_answers() -> None:
    client = Client()
    client.send(1)
    buffer = client.connection.get_buffer()
    buffer[:8] = struct.pack(">iI", -1, 0)
    client.connection.buffer_updated(8)
    await client.answer(1)
    assert client.written == [b"1 "]
    assert client.connection._stream is None


@given(st.data())
def test_any_order_of_arrival_and_answer_keeps_the_order_of_the_answers(data: st.DataObject) -> None:
    async def main() -> None:
        client = Client()
        kinds = data.draw(st.lists(st.sampled_from(["produce", "late", "at once", "fetch"]), min_size=1, max_size=12))
        client.at_once = {number for number, kind in enumerate(kinds) if kind == "at once"}
        client.not_carried_out = {number for number, kind in enumerate(kinds) if kind == "late"}
        stream = b"".join(
            framed(number, FETCH_KEY if kind == "fetch" else PRODUCE_KEY, 3) for number, kind in enumerate(kinds)
        )
        answered: set[int] = set()
        while len(answered | client.at_once) < len(kinds) or stream:
            waiting = sorted(set(client.waits) - answered)
            if stream and (not waiting or data.draw(st.booleans())):
                taken = data.draw(st.integers(1, len(stream)))
                client.connection.get_buffer()[:taken] = stream[:taken]
                client.connection.buffer_updated(taken)
                stream = stream[taken:]
            elif waiting:
                number = data.draw(st.sampled_from(waiting))
                answered.add(number)
                await client.answer(number)
            waiting = sorted(set(client.waits) - answered)
            others = [number for number in waiting if kinds[number] != "produce"]
            assert others in ([], waiting[-1:]), "behind one that is not carried out none is served"
            assert client.served == sorted(client.served)
        await asyncio.sleep(0)
        assert b"".join(client.written) == b"".join(b"%d " % number for number in range(len(kinds)))

    asyncio.run(main())
