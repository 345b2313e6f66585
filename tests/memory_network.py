"""Outgoing connections without sockets, and brokers behind them that answer as a test wishes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.messages import encode_response
from headwater.logtier.runtime.streams import FileSlice, Part, Stream, StreamHandler

API_VERSIONS = 18
#: The API that tests call.
ECHO = 3
VERSIONS = {1: (4, 18), ECHO: (0, 13), 17: (0, 1), API_VERSIONS: (0, 4), 36: (0, 2)}


class MemoryStream:
    """One end of a connection as the client's handler sees it; the broker's end is a callback."""

    def __init__(self, handler: StreamHandler, connection: MemoryConnection) -> None:
        self.peer_host = "memory"
        self.is_writing = False
        self.unsent_bytes = 0
        self.is_closed = False
        self._handler = handler
        self._connection = connection
        self._loop = asyncio.get_running_loop()

    def sends_cold(self) -> bool:
        return False

    def write(self, parts: Sequence[Part]) -> None:
        assert not self.is_closed, "written to after the end"
        for part in parts:
            assert not isinstance(part, FileSlice)
            self._loop.call_soon(self._connection.receive, bytes(part))

    def pause_reading(self) -> None:
        raise AssertionError("nobody pauses")

    def resume_reading(self) -> None:
        raise AssertionError("nobody pauses")

    def close(self) -> None:
        self.end(None)

    def deliver(self, data: bytes) -> None:
        """Bytes of the broker, in as many pieces as the handler's buffers make of them."""
        while data and not self.is_closed:
            buffer = self._handler.get_buffer()
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            self._handler.buffer_updated(size)

    def end(self, error: OSError | None) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._handler.connection_lost(error)


@dataclass
class MemoryRequest:
    """A request as the broker received it."""

    connection: MemoryConnection
    api_key: int
    api_version: int
    correlation_id: int
    body: bytes

    def answer(self, body: bytes) -> None:
        """Sends a response without tagged fields in its header."""
        frame = struct.pack(">i", self.correlation_id) + body
        self.connection.stream.deliver(struct.pack(">i", len(frame)) + frame)

    def answer_tree(self, tree: Mapping[str, Any]) -> None:
        """Sends a response of Kafka's."""
        self.answer(encode_response(self.api_key, self.api_version, tree))


class MemoryConnection:
    """The broker's end of a connection."""

    def __init__(self, broker: MemoryBroker, handler: StreamHandler) -> None:
        self.broker = broker
        self.stream = MemoryStream(handler, self)
        self.requests: list[MemoryRequest] = []
        self._received = b""

    def receive(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < size + 4:
                return
            frame, self._received = self._received[4 : size + 4], self._received[size + 4 :]
            api_key, version, correlation_id, client_id_size = struct.unpack_from(">hhih", frame)
            request = MemoryRequest(self, api_key, version, correlation_id, frame[10 + client_id_size :])
            self.requests.append(request)
            if not self.stream.is_closed:
                self.broker.handle(request)


class MemoryBroker:
    """Answers ApiVersions, and hands other requests to `handler`: by default they come back as they are."""

    def __init__(self, versions: Mapping[int, tuple[int, int]] = VERSIONS) -> None:
        self.versions = dict(versions)
        self.connections: list[MemoryConnection] = []
        self.requests: list[MemoryRequest] = []
        self.handler: Callable[[MemoryRequest], None] = lambda request: request.answer(request.body)
        #: Answers nothing at all.
        self.is_silent = False

    def handle(self, request: MemoryRequest) -> None:
        if self.is_silent:
            return
        if request.api_key == API_VERSIONS:
            api_keys = [
                {"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in self.versions.items()
            ]
            request.answer_tree({"error_code": ErrorCode.none, "api_keys": api_keys})
            return
        self.requests.append(request)
        self.handler(request)

    @property
    def open_connections(self) -> list[MemoryConnection]:
        return [each for each in self.connections if not each.stream.is_closed]

    def end_connections(self, error: OSError | None = None) -> None:
        """Ends every connection, as a broker does that is killed."""
        for connection in self.open_connections:
            connection.stream.end(error)


class MemoryNetwork:
    """Brokers by host and port; `attempts` holds the virtual time (s) and target of each connection attempt."""

    def __init__(self) -> None:
        self.brokers: dict[tuple[str, int], MemoryBroker] = {}
        self.attempts: list[tuple[float, str, int]] = []
        #: Targets that answer no attempt.
        self.black_holes: set[tuple[str, int]] = set()

    async def connect(
        self,
        host: str,
        port: int,
        handler: StreamHandler,
        *,
        buffer_bytes: tuple[int, int] = (-1, -1),
        tls: object = None,
    ) -> Stream:
        loop = asyncio.get_running_loop()
        self.attempts.append((loop.time(), host, port))
        if (host, port) in self.black_holes:
            await loop.create_future()
        await asyncio.sleep(0.001)
        broker = self.brokers.get((host, port))
        if broker is None:
            raise ConnectionRefusedError(111, "Connection refused")
        connection = MemoryConnection(broker, handler)
        broker.connections.append(connection)
        handler.connection_made(connection.stream)
        return connection.stream
