"""The answer of a query as its service sends it: JSON lines, or Arrow's stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headwater.api.errors import sql_failure_response
from headwater.api.sql_gateway import QueryColumns, QueryEnd, QueryEvent, RowForm, SqlFailure, SqlGateway, SqlQuery

MEDIA_TYPES: Final = {
    RowForm.NDJSON: "application/x-ndjson",
    RowForm.ARROW: "application/vnd.apache.arrow.stream",
}
QUERY_ID_HEADER: Final = "x-headwater-query-id"


class _ClientGoneError(Exception):
    """The client has closed its connection."""


class QueryResponse(Response):
    """Runs a query while it is sent; at most one event is held, and the query waits for a slow client.

    A failure before the first rows is an error answer. A later one is the last line of JSON lines; Arrow's stream has
    no place for it, and is broken off without its end. When the client goes away, the query is cancelled.
    """

    def __init__(self, gateway: SqlGateway, query: SqlQuery) -> None:
        super().__init__(media_type=MEDIA_TYPES[query.form])
        self._service = gateway
        self._query = query
        self._is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            async with self._service.run(self._query) as events:
                await self._send(events, gone, send)
        except SqlFailure as failure:
            if not self._is_started:
                await sql_failure_response(failure)(scope, receive, send)
            elif self._query.form is RowForm.NDJSON:
                await _body(send, _line({"error": failure.value()}), more=False)
        except (_ClientGoneError, OSError):
            pass  # leaving the gateway's context has ended the query
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _send(self, events: AsyncIterator[QueryEvent], gone: asyncio.Future[None], send: Send) -> None:
        columns = b""
        is_json = self._query.form is RowForm.NDJSON
        while True:
            event = await _next(events, gone)
            if isinstance(event, QueryColumns):
                named = [{"name": name, "type": kind} for name, kind in event.columns]
                columns = _line({"query_id": self._query.query_id, "columns": named}) if is_json else b""
                continue
            if not self._is_started:
                self._is_started = True
                headers = [
                    (b"content-type", MEDIA_TYPES[self._query.form].encode()),
                    (b"cache-control", b"no-store"),
                    (QUERY_ID_HEADER.encode(), self._query.query_id.encode()),
                ]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await _body(send, columns, more=True)
            if isinstance(event, QueryEnd):
                end = {"rows": event.rows, "truncated": event.truncated, "seconds": event.seconds}
                await _body(send, _line({"end": end}) if is_json else b"", more=False)
                return
            await _body(send, event, more=True)


async def _next(events: AsyncIterator[QueryEvent], gone: asyncio.Future[None]) -> QueryEvent:
    """The next event. Raises SqlFailure, and _ClientGoneError."""
    following = asyncio.ensure_future(anext(events))
    try:
        both: list[asyncio.Future[Any]] = [following, gone]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            return following.result()
    finally:
        if not following.done():
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
    raise _ClientGoneError


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(send: Send, content: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": more})


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"
