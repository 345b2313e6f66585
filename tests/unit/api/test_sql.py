"""Queries over REST with a service in memory: who may ask, the answer's forms, its failures, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx
import pytest

from headwater.api.app import create_app
from headwater.api.errors import SQL_STATUS
from headwater.api.sql_gateway import QueryColumns, QueryEnd, QueryEvent, SqlFailure, SqlFailureCode, SqlQuery
from headwater.api.sql_policy import SqlPolicy
from tests.unit.api.conftest import InMemoryTopicAdmin

PATH = "/headwater/v1/sql"
COLUMNS = QueryColumns((("a", "int"),))
END = QueryEnd(2, None, 0.5)


class InMemoryGateway:
    """Answers each query with the same events; an exception among them is raised, None lasts until the end."""

    def __init__(self, events: Sequence[QueryEvent | Exception | None] = (COLUMNS, b"[1]\n[2]\n", END)) -> None:
        self.events = events
        self.queries: list[SqlQuery] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.sent = 0

    @contextlib.asynccontextmanager
    async def run(self, query: SqlQuery) -> AsyncIterator[AsyncIterator[QueryEvent]]:
        self.queries.append(query)
        try:
            yield self._events()
        finally:
            self.ended.append(query.query_id)

    async def _events(self) -> AsyncIterator[QueryEvent]:
        for event in self.events:
            if event is None:
                await asyncio.Event().wait()
            elif isinstance(event, Exception):
                raise event
            else:
                self.sent += 1
                yield event

    def cancel(self, query_id: str) -> bool:
        self.cancelled.append(query_id)
        return query_id == "there"

    def running(self) -> list[SqlQuery]:
        return [SqlQuery("there", "SELECT 1", "a")]


def call(
    gateway: InMemoryGateway | None,
    method: str = "POST",
    path: str = PATH,
    *,
    policy: SqlPolicy | None = None,
    client: str = "127.0.0.1",
    host: str = "localhost:8082",
    headers: Mapping[str, str] | None = None,
    **arguments: Any,
) -> httpx.Response:
    app = create_app(InMemoryTopicAdmin(), hosts=("headwater",), sql_gateway=gateway, sql_policy=policy)

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as asking:
            return await asking.request(method, path, headers=dict(headers or {}), **arguments)

    return asyncio.run(send())


def ask(gateway: InMemoryGateway | None, body: Any = None, **arguments: Any) -> httpx.Response:
    return call(gateway, json={"statement": "SELECT 1"} if body is None else body, **arguments)


def failure(answer: httpx.Response) -> tuple[int, int]:
    body = answer.json()
    assert set(body) == {"error_code", "message"}
    return answer.status_code, body["error_code"]


def test_rows_are_lines_between_the_columns_and_the_end() -> None:
    gateway = InMemoryGateway()
    given = {"statement": "SELECT :a", "session": "s", "parameters": {"a": 1.5}, "row_limit": 5, "timeout_ms": 7}
    answer = ask(gateway, given)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    [query] = gateway.queries
    assert (query.statement, query.session, query.parameters, query.row_limit, query.timeout_ms) == tuple(
        given.values()
    )
    assert [json.loads(line) for line in answer.text.splitlines()] == [
        {"query_id": query.query_id, "columns": [{"name": "a", "type": "int"}]},
        [1],
        [2],
        {"end": {"rows": 2, "truncated": None, "seconds": 0.5}},
    ]
    assert answer.headers["x-headwater-query-id"] == query.query_id
    assert gateway.ended == [query.query_id]


def test_arrows_stream_is_sent_as_the_service_makes_it() -> None:
    gateway = InMemoryGateway([COLUMNS, b"ARROW", b"1", END])
    answer = ask(gateway, headers={"accept": "application/vnd.apache.arrow.stream"})
    assert (answer.headers["content-type"], answer.content) == ("application/vnd.apache.arrow.stream", b"ARROW1")
    assert ask(gateway, headers={"accept": "text/html"}).status_code == 406


@pytest.mark.parametrize("code", list(SqlFailureCode))
def test_a_failure_before_the_first_rows_is_an_error_answer(code: SqlFailureCode) -> None:
    gateway = InMemoryGateway([COLUMNS, SqlFailure(code, "so it is", (2, 3))])
    answer = ask(gateway)
    assert failure(answer) == SQL_STATUS[code]
    assert answer.json()["message"] == "line 2, column 3: so it is"
    assert ("retry-after" in answer.headers) == (code is SqlFailureCode.BUSY)
    assert len(gateway.ended) == 1


def test_a_failure_behind_rows_is_the_last_line() -> None:
    answer = ask(InMemoryGateway([COLUMNS, b"[1]\n", SqlFailure(SqlFailureCode.FAILED, "division by zero")]))
    assert answer.status_code == 200
    assert json.loads(answer.text.splitlines()[-1]) == {"error": {"code": "FAILED", "message": "division by zero"}}


def asgi(gateway: InMemoryGateway, *, gone_after: int) -> list[dict[str, Any]]:
    """Ask with a client that goes away after a number of messages; returns these."""
    app = create_app(InMemoryTopicAdmin(), sql_gateway=gateway)
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        requests = iter([{"type": "http.request", "body": b'{"statement": "SELECT 1"}', "more_body": False}])
        gone = asyncio.Event()
        if not gone_after:
            asyncio.get_running_loop().call_later(0.05, gone.set)

        async def receive() -> dict[str, Any]:
            message = next(requests, None)
            if message is not None:
                return message
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if len(sent) >= gone_after:
                gone.set()

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"25")]
        scope = {
            "type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode(), "query_string": b"",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "scheme": "http",
            "http_version": "1.1", "asgi": {"version": "3.0"}, "root_path": "",
        }  # fmt: skip
        await asyncio.wait_for(app(scope, receive, send), 60)

    asyncio.run(run())
    return sent


@pytest.mark.parametrize("events", [[None], [COLUMNS, None], [COLUMNS, b"[1]\n", None]])
def test_a_query_ends_when_its_client_goes_away(events: list[QueryEvent | None]) -> None:
    gateway = InMemoryGateway(events)
    sent = asgi(gateway, gone_after=3 if len(events) == 3 else 0)
    assert len(gateway.ended) == 1
    assert all(message.get("more_body", True) for message in sent)


def test_arrows_stream_breaks_off_at_a_failure() -> None:
    gateway = InMemoryGateway([COLUMNS, b"ARROW", SqlFailure(SqlFailureCode.FAILED, "no")])
    app = create_app(InMemoryTopicAdmin(), sql_gateway=gateway)

    async def read() -> bytes:
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            accept = {"accept": "application/vnd.apache.arrow.stream"}
            answer = await client.post(PATH, json={"statement": "SELECT 1"}, headers=accept)
            return answer.content

    # The transport has no word for a connection that is closed early: it misses the answer's last message.
    with pytest.raises(AssertionError):
        asyncio.run(read())


@pytest.mark.parametrize("client", ["10.0.0.1", "::ffff:10.0.0.1", "testclient"])
def test_callers_on_other_machines_are_refused(client: str) -> None:
    gateway = InMemoryGateway()
    answer = ask(gateway, client=client)
    assert failure(answer) == (403, 40301)
    assert "another machine" in answer.json()["message"]
    assert gateway.queries == []


def test_another_name_of_the_server_is_refused() -> None:
    answer = ask(InMemoryGateway(), host="headwater:8082")
    assert failure(answer) == (403, 40301)
    assert "'headwater'" in answer.json()["message"]
    assert ask(InMemoryGateway(), host="evil.example").status_code == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "http://localhost:8082.x"])
def test_pages_of_other_origins_are_refused(origin: str) -> None:
    gateway = InMemoryGateway()
    for method, path in (("POST", PATH), ("GET", PATH), ("DELETE", f"{PATH}/there")):
        answer = call(gateway, method, path, headers={"origin": origin}, json={"statement": "SELECT 1"})
        assert failure(answer) == (403, 40301)
    assert (gateway.queries, gateway.cancelled) == ([], [])
    assert ask(gateway, headers={"origin": "http://localhost:8082"}).status_code == 200


def test_a_body_that_a_form_can_send_is_refused() -> None:
    for headers in ({"content-type": "text/plain"}, {}):
        gateway = InMemoryGateway()
        assert failure(call(gateway, headers=headers, content=b'{"statement": "SELECT 1"}')) == (415, 415)
        assert gateway.queries == []


@pytest.mark.parametrize(
    "given",
    [
        {"host_is_loopback": False, "broker_is_secured": False},
        {"host_is_loopback": True, "broker_is_secured": True},
    ],
)
def test_a_server_that_others_reach_or_whose_broker_is_secured_runs_nothing(given: dict[str, bool]) -> None:
    gateway = InMemoryGateway()
    answer = ask(gateway, policy=SqlPolicy.of("auto", **given))
    assert failure(answer) == (403, 40301)
    assert gateway.queries == []
    allowed = ask(gateway, policy=SqlPolicy.of("allow", **given))
    assert allowed.status_code == (200 if given["host_is_loopback"] else 403)


def test_without_a_service_it_is_said_how_to_start_one() -> None:
    answer = ask(None)
    assert failure(answer) == (503, 50301)
    assert "up --sql" in answer.json()["message"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"statement": ""},
        {"statement": "x" * 65_537},
        {"statement": "SELECT 1", "row_limit": -1},
        {"statement": "SELECT 1", "row_limit": 1_000_001},
        {"statement": "SELECT 1", "timeout_ms": 0},
        {"statement": "SELECT 1", "parameters": {"a": []}},
        {"statement": "SELECT 1", "rows": 1},
    ],
)
def test_a_body_that_does_not_fit_is_refused(body: Any) -> None:
    gateway = InMemoryGateway()
    assert failure(ask(gateway, body)) == (422, 42206)
    assert gateway.queries == []


def test_running_queries_are_listed_and_cancelled() -> None:
    gateway = InMemoryGateway()
    listed = call(gateway, "GET").json()
    assert [(each["query_id"], each["session"]) for each in listed["data"]] == [("there", "a")]
    assert call(gateway, "DELETE", f"{PATH}/there").status_code == 204
    assert failure(call(gateway, "DELETE", f"{PATH}/gone")) == (404, 404)
    assert gateway.cancelled == ["there", "gone"]
