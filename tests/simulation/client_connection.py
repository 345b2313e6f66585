"""A client's connection: the sans-IO core of the raw client on a simulated stream."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from headwater.logtier.client.connection import BrokerConnection, Request
from headwater.logtier.runtime.streams import Stream

Answer = TypeVar("Answer")


class ClientConnection:
    """The handler of a client's stream."""

    def __init__(self, client_id: str) -> None:
        self._core = BrokerConnection(client_id)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._stream: Stream | None = None
        self.is_lost = False

    async def request(self, request: Request[Answer], timeout_s: float) -> Answer:
        """Send a request and return its response.

        Raises:
            ConnectionError: The connection was lost, or there was no response in time: what the request did is unknown.
        """
        if self.is_lost or self._stream is None:
            raise ConnectionResetError
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        correlation_id, frame = self._core.send(request)
        self._waiting[correlation_id] = future
        self._stream.write((frame,))
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            self.close()
            raise ConnectionAbortedError("no response in time") from None

    def close(self) -> None:
        if self._stream is not None and not self.is_lost:
            self._stream.close()

    def connection_made(self, stream: Stream) -> None:
        self._stream = stream

    def get_buffer(self) -> memoryview:
        return self._core.get_buffer()

    def buffer_updated(self, size: int) -> None:
        response = self._core.buffer_updated(size)
        if response is not None:
            future = self._waiting.pop(response.correlation_id)
            if not future.done():
                future.set_result(response.value)

    def secured(self, certificate: bytes | None) -> None:
        raise AssertionError("there is no TLS here")

    def writing_done(self) -> None:
        """Nothing waits for room."""

    def connection_lost(self, error: OSError | None) -> None:
        self.is_lost = True
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the connection was lost"))
