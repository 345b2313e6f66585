"""Networks in memory: the cables between hosts, and what one process holds of them."""

from __future__ import annotations

import asyncio
import errno
import random
import ssl
from collections.abc import Callable
from contextvars import Context

from headwater.logtier.runtime.streams import StreamHandler
from tests.simulation.file_system import FileSystem
from tests.simulation.virtual_loop import PROCESS, Process
from tests.simulation.wires import Item, Route, SimulatedStream, Wire

#: Interval at which a connection to a silent machine is tried again.
SYN_INTERVAL_S = 0.5
#: Attempts before a connection counts as impossible; Linux gives up after minutes, as no caller waits.
SYNS_MAX = 60


class Cables:
    """The hosts, which of them are up, and the routes between them.

    Invariant: faults belong to a route, whichever processes run at its ends, and hold for connections made later.
    """

    def __init__(self, chance: random.Random) -> None:
        self._loop = asyncio.get_running_loop()
        self._chance = chance
        self._routes: dict[tuple[str, str], Route] = {}
        self._powered: dict[str, bool] = {}
        self._networks: dict[str, SimulatedNetwork] = {}
        self.kernel = Context()

    def route(self, source: str, target: str) -> Route:
        found = self._routes.get((source, target))
        if found is None:
            found = self._routes[source, target] = Route(self._loop, self._chance)
        return found

    def plug_in(self, network: SimulatedNetwork) -> None:
        """A process has the host's ports from now on."""
        self._networks[network.host] = network
        self._powered[network.host] = True

    def unplug(self, network: SimulatedNetwork, *, is_powered: bool) -> None:
        """The process is gone; without power the host answers nothing."""
        if self._networks.get(network.host) is network:
            del self._networks[network.host]
            self._powered[network.host] = is_powered

    def is_powered(self, host: str) -> bool:
        return self._powered.get(host, False)

    async def connect(self, source: SimulatedNetwork, host: str, port: int, handler: StreamHandler) -> SimulatedStream:
        """Connect a process to a port."""
        there, back = self.route(source.host, host), self.route(host, source.host)
        for _ in range(SYNS_MAX):
            await there.crossed()
            if self.is_powered(host):
                break
            await asyncio.sleep(SYN_INTERVAL_S)
        else:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
        target = self._networks.get(host)
        listener = None if target is None else target.listeners.get(port)
        if target is None or listener is None:
            await back.crossed()
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        to_server = Wire(self._loop, there, self.kernel)
        to_client = Wire(self._loop, back, self.kernel)
        accepted = listener.connected(source.address, to_server, to_client)
        try:
            await back.crossed()
        except BaseException:
            to_server.send(None)
            raise
        stream = source.stream(host, handler, to_server)
        to_client.arrive = stream.arrived
        pair = (stream, accepted)
        source.add(pair)
        target.add(pair)
        handler.connection_made(stream)
        return stream


class Accepted:
    """The server's end of a connection: what arrives before the listener accepts it waits."""

    def __init__(self, network: SimulatedNetwork, to_server: Wire, to_client: Wire) -> None:
        self.network = network
        self.stream: SimulatedStream | None = None
        self._to_server = to_server
        self._to_client = to_client
        self._waiting: list[Item] = []
        to_server.arrive = self._arrived

    def _arrived(self, item: Item) -> None:
        if self.stream is None:
            self._waiting.append(item)
        else:
            self.stream.arrived(item)

    def accept(self, stream: SimulatedStream) -> None:
        self.stream = stream
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            stream.arrived(item)

    def end(self, *, silently: bool) -> None:
        """The process is gone."""
        if self.stream is not None:
            self.stream.end(silently=silently)
            return
        self._to_server.arrive = lambda _: None
        if not silently:
            self._to_client.send(None)


class _SimulatedListener:
    def __init__(self, network: SimulatedNetwork, port: int, make_handler: Callable[[], StreamHandler]) -> None:
        self.host = network.host
        self.port = port
        self._make_handler = make_handler
        self._network = network
        self._is_accepting = False
        self._backlog: list[Callable[[], None]] = []

    def connected(self, client: str, to_server: Wire, to_client: Wire) -> Accepted:
        """The kernel has made a connection; the process accepts it in its own time."""
        accepted = Accepted(self._network, to_server, to_client)

        def accept() -> None:
            handler = self._make_handler()
            stream = self._network.stream(client, handler, to_client)
            accepted.accept(stream)
            handler.connection_made(stream)

        if self._is_accepting and self._network.is_open:
            self._network.soon(accept)
        else:
            self._backlog.append(accept)
        return accepted

    def accept(self) -> None:
        self._is_accepting = True
        self.flush()

    def flush(self) -> None:
        """Accept what waits."""
        if self._is_accepting and self._network.is_open:
            backlog, self._backlog = self._backlog, []
            for accept in backlog:
                self._network.soon(accept)

    def pause(self, pause_s: float) -> None:
        self._is_accepting = False
        asyncio.get_running_loop().call_later(pause_s, self.accept)

    def close(self) -> None:
        self._network.listeners.pop(self.port, None)


class SimulatedNetwork:
    """The network of one process: listening and outgoing.

    Attributes:
        listeners: Open ports.
        is_open: Whether connections are accepted; until then they wait, also for a listener that accepts.
        address: The address that peers see.
    """

    def __init__(
        self,
        cables: Cables,
        host: str,
        process: Process | None,
        chance: random.Random,
        file_system: FileSystem | None = None,
        address: str = "",
    ) -> None:
        self.host = host
        self.address = address or host
        self.listeners: dict[int, _SimulatedListener] = {}
        self.is_open = False
        self._cables = cables
        self._loop = asyncio.get_running_loop()
        self._chance = chance
        self._file_system = file_system
        self._context = Context()
        self._context.run(PROCESS.set, process)
        self._pairs: list[tuple[SimulatedStream, Accepted]] = []
        cables.plug_in(self)

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

    async def connect(
        self,
        host: str,
        port: int,
        handler: StreamHandler,
        *,
        buffer_bytes: tuple[int, int] = (-1, -1),
        tls: ssl.SSLContext | None = None,
    ) -> SimulatedStream:
        """Connect to another host; OSError."""
        assert tls is None
        return await self._cables.connect(self, host, port, handler)

    def open(self) -> None:
        """Accept connections from now on."""
        self.is_open = True
        for listener in self.listeners.values():
            listener.flush()

    def soon(self, act: Callable[[], None]) -> None:
        """Run a step of the process."""
        self._loop.call_soon(act, context=self._context)

    def stream(self, peer_host: str, handler: StreamHandler, outgoing: Wire) -> SimulatedStream:
        return SimulatedStream(
            peer_host, handler, outgoing, self._context, self._file_system, lambda: self._cables.is_powered(self.host)
        )

    def add(self, pair: tuple[SimulatedStream, Accepted]) -> None:
        self._pairs = [known for known in self._pairs if not known[0].is_closed]
        self._pairs.append(pair)

    def reset_connections(self, ratio: float = 1.0) -> None:
        """Lose connections: each end learns it at once."""
        for client, server in self._pairs:
            if self._chance.random() < ratio and not client.is_closed:
                client.reset()
                if server.stream is not None:
                    server.stream.reset()

    def end(self, *, silently: bool) -> None:
        """The process is gone: its ports are closed; its peers learn it by and by, or `silently` nothing.

        What it has sent arrives, as the kernel still has it; without power it does not.
        """
        self.listeners.clear()
        self._cables.unplug(self, is_powered=not silently)
        for client, server in self._pairs:
            if server.network is self:
                server.end(silently=silently)
            else:
                client.end(silently=silently)
        self._pairs.clear()
