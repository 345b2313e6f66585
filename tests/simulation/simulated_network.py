"""A network in memory: connections with delays, which can be lost or cut in one direction."""

from __future__ import annotations

import asyncio
import errno
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.logtier.client.connection import BrokerConnection, Request
from headwater.logtier.runtime.streams import FileSlice, Part, StreamHandler
from tests.simulation.virtual_loop import PROCESS, Process

if TYPE_CHECKING:
    from tests.simulation.file_system import FileSystem

#: Time that bytes travel, in seconds.
LATENCY_S = (0.000_1, 0.002)

Answer = TypeVar("Answer")


class Wire:
    """One direction of a connection: bytes arrive in order, each part after its delay.

    A cut wire holds what is sent, as TCP does, which sends it again until the cut heals.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, chance: random.Random, context: Context) -> None:
        self._loop = loop
        self._chance = chance
        #: Arrivals belong to the receiving process, which may be frozen or dead.
        self._context = context
        self._free_from_s = 0.0
        self._held: list[bytes | None] = []
        self.is_cut = False
        self.receive: Callable[[bytes | None], None] = lambda _: None

    def send(self, data: bytes | None) -> None:
        """Send bytes; None is the end of the connection."""
        if self.is_cut:
            self._held.append(data)
            return
        due_s = max(self._free_from_s, self._loop.time() + self._chance.uniform(*LATENCY_S))
        self._free_from_s = due_s
        self._loop.call_at(due_s, self._arrive, data, context=self._context)

    def _arrive(self, data: bytes | None) -> None:
        self.receive(data)

    def heal(self) -> None:
        self.is_cut = False
        held, self._held = self._held, []
        for data in held:
            self.send(data)


class ServerStream:
    """The broker's end of a connection."""

    def __init__(self, host: str, handler: StreamHandler, to_client: Wire, file_system: FileSystem) -> None:
        self.peer_host = host
        self._handler = handler
        self._to_client = to_client
        self._file_system = file_system
        self._received: deque[memoryview] = deque()
        self._is_paused = False
        self._is_closed = False
        self._is_delivering = False

    @property
    def is_writing(self) -> bool:
        return False

    @property
    def unsent_bytes(self) -> int:
        return 0

    def sends_cold(self) -> bool:
        return False

    def write(self, parts: Sequence[Part]) -> None:
        """Send all parts: the socket has room for everything."""
        if not self._is_closed:
            self._to_client.send(b"".join(map(self._bytes, parts)))

    def _bytes(self, part: Part) -> bytes:
        if isinstance(part, FileSlice):
            data = self._file_system.read(part.fileno, part.position, part.size)
            assert len(data) == part.size, "the file is shorter than the slice that is sent"
            return data
        return bytes(part)

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._deliver()

    def close(self) -> None:
        self._lose(None)
        self._to_client.send(None)

    def receive(self, data: bytes | None) -> None:
        """Hand bytes of the client to the handler; None ends the connection."""
        if data is None:
            self._lose(None)
        elif not self._is_closed:
            self._received.append(memoryview(data))
            self._deliver()

    def reset(self) -> None:
        self._lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def _lose(self, error: OSError | None) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._received.clear()
            self._handler.connection_lost(error)

    def _deliver(self) -> None:
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while self._received and not self._is_paused and not self._is_closed:
                data = self._received.popleft()
                buffer = self._handler.get_buffer()
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                if size < len(data):
                    self._received.appendleft(data[size:])
                self._handler.buffer_updated(size)
        finally:
            self._is_delivering = False


class _SimulatedListener:
    def __init__(self, network: SimulatedNetwork, port: int, make_handler: Callable[[], StreamHandler]) -> None:
        self.host = network.host
        self.port = port
        self.make_handler = make_handler
        self.is_accepting = False
        self._network = network

    def accept(self) -> None:
        self.is_accepting = True

    def pause(self, pause_s: float) -> None:
        self.is_accepting = False
        asyncio.get_running_loop().call_later(pause_s, self.accept)

    def close(self) -> None:
        self._network.listeners.pop(self.port, None)


class ClientConnection:
    """A client's end: the sans-IO core of the raw client over a wire."""

    def __init__(self, client_id: str, to_server: Wire) -> None:
        self._core = BrokerConnection(client_id)
        self._to_server = to_server
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.is_lost = False

    async def request(self, request: Request[Answer], timeout_s: float) -> Answer:
        """Send a request and return its response.

        Raises:
            ConnectionError: The connection was lost, or there was no response in time: what the request did is unknown.
        """
        if self.is_lost:
            raise ConnectionResetError
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        correlation_id, frame = self._core.send(request)
        self._waiting[correlation_id] = future
        self._to_server.send(frame)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            self.close()
            raise ConnectionAbortedError("no response in time") from None

    def receive(self, data: bytes | None) -> None:
        if data is None:
            self.lose()
        elif not self.is_lost:
            self._take(memoryview(data))

    def _take(self, data: memoryview) -> None:
        while data:
            buffer = self._core.get_buffer()
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            response = self._core.buffer_updated(size)
            if response is not None:
                future = self._waiting.pop(response.correlation_id)
                if not future.done():
                    future.set_result(response.value)

    def lose(self) -> None:
        self.is_lost = True
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the connection was lost"))

    def close(self) -> None:
        if not self.is_lost:
            self.lose()
            self._to_server.send(None)


class SimulatedNetwork:
    """The network of one broker's process.

    Attributes:
        listeners: Open ports.
    """

    def __init__(self, host: str, process: Process, chance: random.Random, file_system: FileSystem) -> None:
        self.host = host
        self.listeners: dict[int, _SimulatedListener] = {}
        self._loop = asyncio.get_running_loop()
        self._chance = chance
        self._file_system = file_system
        self._outside = Context()
        self._inside = Context()
        self._inside.run(PROCESS.set, process)
        self._connections: list[tuple[ServerStream, ClientConnection, Wire, Wire]] = []

    def listen(
        self,
        host: str,
        port: int,
        make_handler: Callable[[], StreamHandler],
        *,
        backlog: int,
        buffer_bytes: tuple[int, int] = (-1, -1),
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> _SimulatedListener:
        assert tls is None
        assert host == self.host
        assert port not in self.listeners
        listener = self.listeners[port] = _SimulatedListener(self, port, make_handler)
        return listener

    async def connect(self, port: int, client_id: str) -> ClientConnection:
        """Connect as a client; ConnectionRefusedError."""
        await asyncio.sleep(self._chance.uniform(*LATENCY_S))
        listener = self.listeners.get(port)
        if listener is None or not listener.is_accepting:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        to_server = Wire(self._loop, self._chance, self._inside)
        to_client = Wire(self._loop, self._chance, self._outside)
        client = ClientConnection(client_id, to_server)
        to_client.receive = client.receive
        made = listener.make_handler

        def accept() -> None:
            handler = made()
            stream = ServerStream("10.0.0.1", handler, to_client, self._file_system)
            to_server.receive = stream.receive
            self._connections = [known for known in self._connections if not known[1].is_lost]
            self._connections.append((stream, client, to_server, to_client))
            handler.connection_made(stream)

        self._loop.call_soon(accept, context=self._inside)
        return client

    def reset_connections(self, ratio: float = 1.0) -> None:
        """Lose connections: each end learns it at once, and what is on the way is gone."""
        for stream, client, to_server, to_client in self._connections:
            if self._chance.random() < ratio and not client.is_lost:
                to_server.receive = to_client.receive = lambda _: None
                client.lose()
                self._loop.call_soon(stream.reset, context=self._inside)

    def cut(self, direction: str) -> None:
        """Hold what is sent `to_server` or `to_client` on the open connections."""
        for _, _, to_server, to_client in self._connections:
            (to_server if direction == "to_server" else to_client).is_cut = True

    def heal(self) -> None:
        for _, _, to_server, to_client in self._connections:
            for wire in (to_server, to_client):
                if wire.is_cut:
                    wire.heal()

    def end(self, *, silently: bool) -> None:
        """The process is gone: its ports are closed; its peers learn it now, or `silently` not at all."""
        self.listeners.clear()
        for _, client, to_server, to_client in self._connections:
            to_server.receive = to_client.receive = lambda _: None
            if not silently:
                client.lose()
        self._connections.clear()
