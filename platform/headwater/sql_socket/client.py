"""The REST API's way to the SQL service: a connection to its socket for each query."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from headwater.api.sql_gateway import QueryEnd, QueryEvent, SqlFailure, SqlFailureCode, SqlQuery
from headwater.sql_socket.frames import CANCEL, FrameError, FrameReader, encode_frame, encode_query, event_of

__all__ = ["SocketGateway"]

READ_BYTES: Final = 65_536  # held for a query whose client does not read; the service then waits


class SocketGateway:
    """Runs queries in the process that listens on a Unix socket. Used on one event loop."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._running: dict[str, tuple[SqlQuery, asyncio.StreamWriter]] = {}

    @contextlib.asynccontextmanager
    async def run(self, query: SqlQuery) -> AsyncIterator[AsyncIterator[QueryEvent]]:
        """The events of a query's answer; leaving the context closes the connection, which ends the query."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=READ_BYTES)
        except OSError as error:
            raise _unavailable(f"it does not listen ({error.strerror})") from None
        self._running[query.query_id] = (query, writer)
        try:
            writer.write(encode_query(query))
            yield self._events(reader)
        finally:
            del self._running[query.query_id]
            writer.close()

    async def _events(self, reader: asyncio.StreamReader) -> AsyncIterator[QueryEvent]:
        frames = FrameReader()
        try:
            while received := await reader.read(READ_BYTES):
                for kind, payload in frames.feed(received):
                    event = event_of(kind, payload)
                    yield event
                    if isinstance(event, QueryEnd):
                        return
        except FrameError as error:
            raise _unavailable(f"it sent {error}") from None
        except ConnectionError:
            pass
        raise _unavailable("it ended while the query ran")

    def cancel(self, query_id: str) -> bool:
        """Cancel a query; whether one of this id runs."""
        found = self._running.get(query_id)
        if found is not None and not found[1].is_closing():
            found[1].write(encode_frame(CANCEL))
        return found is not None

    def running(self) -> list[SqlQuery]:
        """The queries that run, oldest first."""
        return [query for query, _ in self._running.values()]


def _unavailable(reason: str) -> SqlFailure:
    return SqlFailure(SqlFailureCode.UNAVAILABLE, f"the SQL service cannot be reached: {reason}; its node restarts it")
