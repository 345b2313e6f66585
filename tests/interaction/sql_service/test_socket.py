"""The API's side and the service's side of the socket, with queries that need no Spark."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from headwater.api.sql_gateway import QueryColumns, QueryEnd, QueryEvent, SqlFailure, SqlFailureCode, SqlQuery
from headwater.cli.sql.statement_run import Cancelled
from headwater.cli.sql_service.connections import QueryWatch, Service, ServiceLimits
from headwater.cli.verbs.sql_service import listen
from headwater.sql_socket.client import SocketGateway
from headwater.sql_socket.frames import CANCEL, FrameReader, encode_frame, encode_query, event_of
from tests.waiting import until

pytestmark = pytest.mark.slow

END = QueryEnd(1, None, 0.0)
WAIT_S = 60.0


class Lab:
    """A service whose queries are: `rows`, `wait` (until cancelled), `flood` (until nobody reads), `fail`, `break`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.running = self.begun = 0
        self.flooded_bytes = 0
        self._listener = listen(path)
        service = Service(self._run, ServiceLimits(queries_max=2, session_queries_max=1))
        threading.Thread(target=service.serve, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        # `close` alone does not wake the thread that accepts.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _run(self, query: SqlQuery, pool: int, send: Callable[[QueryEvent], None], watch: QueryWatch) -> None:
        self.running += 1
        self.begun += 1
        cancelled = threading.Event()
        try:
            watch.began(cancelled.set)
            send(QueryColumns((("pool", str(pool)),)))
            if query.statement == "wait":
                assert cancelled.wait(WAIT_S)
                raise Cancelled
            while query.statement == "flood":
                send(bytes(1 << 20))
                self.flooded_bytes += 1 << 20
            if query.statement == "fail":
                raise SqlFailure(SqlFailureCode.INVALID, "no", (1, 2))
            if query.statement == "break":
                raise ValueError("unforeseen")
            send(b"x" * (3 << 20))
            send(END)
        finally:
            self.running -= 1

    async def events(self, statement: str, query_id: str = "1", timeout_ms: int = 60_000) -> list[QueryEvent]:
        async with SocketGateway(self.path).run(SqlQuery(query_id, statement, "s", timeout_ms=timeout_ms)) as events:
            return [event async for event in events]

    def failure(self, statement: str, timeout_ms: int = 60_000) -> SqlFailure:
        with pytest.raises(SqlFailure) as raised:
            asyncio.run(self.events(statement, timeout_ms=timeout_ms))
        return raised.value


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(str(tmp_path / "socket"))
    yield made
    made.close()


def test_events_arrive_in_order_and_large_ones_in_pieces(lab: Lab) -> None:
    columns, *rows, end = asyncio.run(lab.events("rows"))
    assert (columns, end) == (QueryColumns((("pool", "0"),)), END)
    assert b"".join(row for row in rows if isinstance(row, bytes)) == b"x" * (3 << 20)


def test_failures_arrive(lab: Lab) -> None:
    assert lab.failure("fail").value() == {"code": "INVALID", "message": "no", "line": 1, "column": 2}
    assert lab.failure("break").value() == {"code": "FAILED", "message": "the service failed: unforeseen"}


def test_a_time_limit_ends_a_query(lab: Lab) -> None:
    assert lab.failure("wait", 1).code is SqlFailureCode.TIMED_OUT
    until(lambda: lab.running == 0)


def test_a_time_limit_cuts_off_a_client_that_does_not_read(lab: Lab) -> None:
    async def read_nothing() -> None:
        async with SocketGateway(lab.path).run(SqlQuery("1", "flood", timeout_ms=1_000)):
            # It has begun, whether or not it is over by now.
            await asyncio.to_thread(until, lambda: lab.begun == 1)
            await asyncio.to_thread(until, lambda: lab.running == 0)

    asyncio.run(asyncio.wait_for(read_nothing(), WAIT_S))
    assert lab.flooded_bytes < 8 << 20  # of the connection's buffers: the service holds no more


def test_leaving_the_answer_ends_the_query(lab: Lab) -> None:
    async def leave() -> None:
        async with SocketGateway(lab.path).run(SqlQuery("1", "wait")) as events:
            assert await anext(events) == QueryColumns((("pool", "0"),))

    asyncio.run(leave())
    until(lambda: lab.running == 0)


def test_a_query_is_cancelled_by_its_id(lab: Lab) -> None:
    async def cancel() -> SqlFailure:
        gateway = SocketGateway(lab.path)
        async with gateway.run(SqlQuery("1", "wait")) as events:
            await anext(events)
            assert [query.query_id for query in gateway.running()] == ["1"]
            assert gateway.cancel("1")
            assert not gateway.cancel("2")
            with pytest.raises(SqlFailure) as raised:
                await anext(events)
        assert gateway.running() == []
        return raised.value

    assert asyncio.run(cancel()).code is SqlFailureCode.CANCELLED


def test_a_cancellation_that_comes_with_its_query_is_heard(lab: Lab) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(lab.path)
        connection.settimeout(WAIT_S)
        connection.sendall(encode_query(SqlQuery("1", "wait")) + encode_frame(CANCEL))
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
    *_, (kind, payload) = FrameReader().feed(received)
    with pytest.raises(SqlFailure, match="cancelled"):
        event_of(kind, payload)


def test_a_session_that_waits_leaves_room_for_others(lab: Lab) -> None:
    async def ask() -> list[SqlFailureCode]:
        gateway = SocketGateway(lab.path)
        codes = []

        async def first(events: AsyncIterator[QueryEvent]) -> None:
            try:
                await anext(events)
            except SqlFailure as failure:
                codes.append(failure.code)

        async with contextlib.AsyncExitStack() as held:
            for number, session in enumerate(["a", "a", "b", "c"]):
                query = SqlQuery(str(number), "wait", session)
                await first(await held.enter_async_context(gateway.run(query)))
        return codes

    assert asyncio.run(ask()) == [SqlFailureCode.BUSY, SqlFailureCode.BUSY]
    until(lambda: lab.running == 0)


def test_without_a_service_the_failure_says_so(tmp_path: Path) -> None:
    async def ask() -> None:
        async with SocketGateway(str(tmp_path / "none")).run(SqlQuery("1", "rows")):
            pass

    with pytest.raises(SqlFailure) as raised:
        asyncio.run(ask())
    assert raised.value.code is SqlFailureCode.UNAVAILABLE


def test_a_socket_left_behind_is_replaced_and_one_in_use_is_not(lab: Lab) -> None:
    from headwater.cli.shell.errors import CliError

    with pytest.raises(CliError, match="another process listens"):
        listen(lab.path)
    lab.close()
    with listen(lab.path):
        pass
    assert Path(lab.path).stat().st_mode & 0o777 == 0o600


def test_bytes_of_another_protocol_are_dropped(lab: Lab) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(lab.path)
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert client.recv(10) == b""
