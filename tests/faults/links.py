"""The network between brokers, and between them and ZooKeeper: proxies in user space, which any machine allows."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Final

from tests.bench.processes import free_port

#: The other end of a broker's connection to ZooKeeper.
ZOOKEEPER: Final = 0
_CHUNK_BYTES: Final = 1 << 16
#: A request begins with length, API key, version and correlation id; the client id follows, with its length.
_HEADER_BYTES: Final = 14
_BROKER = re.compile(rb"broker-(\d+)")


class Links:
    """Passes the connections of brokers on, unless a direction of a pair is cut: then nothing arrives, in silence.

    Each broker advertises its listener for brokers at a port of `ports`, and connects to ZooKeeper at one of
    `zookeeper_ports`. Who connects to a broker is known by the client id of its first request.
    """

    def __init__(self, broker_ports: Mapping[int, int], zookeeper_port: int) -> None:
        """`broker_ports`: where the listeners for brokers are."""
        self.ports = {node_id: free_port() for node_id in broker_ports}
        self.zookeeper_ports = {node_id: free_port() for node_id in broker_ports}
        self._broker_ports = dict(broker_ports)
        self._zookeeper_port = zookeeper_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links")
        #: Cut directions: from, to.
        self._cut: set[tuple[int, int]] = set()
        self._healed = asyncio.Event()
        self._connections: dict[asyncio.StreamWriter, tuple[int, int]] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._thread.start()
        self._call(self._serve()).result(10)

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        self._call(self._close()).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, *directions: tuple[int, int]) -> None:
        """Let nothing pass from one end to the other, for each pair; `ZOOKEEPER` is an end, too."""
        self._loop.call_soon_threadsafe(self._cut.update, directions)

    def heal(self, *, reset: bool) -> None:
        """Let everything pass again: what was held arrives late, or is lost with its connection if that is reset."""
        self._loop.call_soon_threadsafe(self._heal, reset)

    def _heal(self, reset: bool) -> None:
        for writer, ends in list(self._connections.items()) if reset else ():
            if ends in self._cut or ends[::-1] in self._cut:
                writer.transport.abort()
        self._cut.clear()
        self._healed.set()
        self._healed = asyncio.Event()

    def _call(self, work: Coroutine[None, None, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _serve(self) -> None:
        for node_id, port in self.ports.items():
            self._servers.append(await asyncio.start_server(self._accepts(node_id), "127.0.0.1", port))
        for node_id, port in self.zookeeper_ports.items():
            self._servers.append(await asyncio.start_server(self._accepts_zookeeper(node_id), "127.0.0.1", port))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepts(self, target: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._spawn(reader, writer, None, target, self._broker_ports[target])

        return accept

    def _accepts_zookeeper(self, source: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._spawn(reader, writer, source, ZOOKEEPER, self._zookeeper_port)

        return accept

    def _spawn(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: int | None, target: int, port: int
    ) -> None:
        task = self._loop.create_task(self._pass_on(reader, writer, source, target, port))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: int | None, target: int, port: int
    ) -> None:
        onwards: asyncio.StreamWriter | None = None
        try:
            first = b""
            if source is None:
                first = await reader.readexactly(_HEADER_BYTES)
                first += await reader.readexactly(int.from_bytes(first[-2:], "big", signed=True))
                found = _BROKER.fullmatch(first[_HEADER_BYTES:])
                source = int(found[1]) if found else -1
            answers, onwards = await asyncio.open_connection("127.0.0.1", port)
            for each in (writer, onwards):
                each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections[each] = source, target
            await asyncio.gather(
                self._pump(reader, onwards, (source, target), first), self._pump(answers, writer, (target, source))
            )
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pass  # One end has gone.
        finally:
            for end in (writer, onwards):
                if end is not None:
                    self._connections.pop(end, None)
                    end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: tuple[int, int], data: bytes = b""
    ) -> None:
        with contextlib.suppress(OSError):
            while data := data or await reader.read(_CHUNK_BYTES):
                while direction in self._cut:
                    await self._healed.wait()
                writer.write(data)
                data = b""
                await writer.drain()
        writer.transport.abort()
