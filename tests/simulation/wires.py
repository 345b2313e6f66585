"""Connections of the simulated network: two wires between two streams, over routes that can be cut or slow."""

from __future__ import annotations

import asyncio
import errno
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context

from headwater.logtier.runtime.streams import FileSlice, Part, StreamHandler
from tests.simulation.file_system import FileSystem

#: Time that bytes travel, in seconds.
LATENCY_S = (0.000_1, 0.002)

Item = bytes | OSError | None
"""What travels: bytes, a reset, or the end of the connection."""


class Route:
    """One direction between two hosts, shared by all their connections.

    A cut route holds what is sent, as TCP does, which sends it again until the cut heals.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, chance: random.Random) -> None:
        self._loop = loop
        self._chance = chance
        self._held: list[tuple[Wire, Item]] = []
        self._healed: list[asyncio.Future[None]] = []
        self.is_cut = False
        #: Time added to the latency of every message.
        self.delay_s = 0.0

    def latency_s(self) -> float:
        return self.delay_s + self._chance.uniform(*LATENCY_S)

    def hold(self, wire: Wire, item: Item) -> None:
        self._held.append((wire, item))

    async def crossed(self) -> None:
        """Wait until one message of the connection's set-up has arrived."""
        while self.is_cut:
            healed: asyncio.Future[None] = self._loop.create_future()
            self._healed.append(healed)
            await healed
        await asyncio.sleep(self.latency_s())

    def heal(self) -> None:
        self.is_cut = False
        healed, self._healed = self._healed, []
        for future in healed:
            if not future.done():
                future.set_result(None)
        held, self._held = self._held, []
        for wire, item in held:
            wire.send(item)


class Wire:
    """One direction of a connection: items arrive in order, each after its delay."""

    def __init__(self, loop: asyncio.AbstractEventLoop, route: Route, kernel: Context) -> None:
        self._loop = loop
        self._route = route
        #: Arrivals belong to the receiving machine's kernel, which works while a process is frozen, and after its end.
        self._kernel = kernel
        self._free_from_s = 0.0
        #: Each arrival takes the oldest one: timers of one moment may fire in any order.
        self._travelling: deque[Item] = deque()
        self.arrive: Callable[[Item], None] = lambda _: None

    def send(self, item: Item) -> None:
        if self._route.is_cut:
            self._route.hold(self, item)
            return
        due_s = max(self._free_from_s, self._loop.time() + self._route.latency_s())
        self._free_from_s = due_s
        self._travelling.append(item)
        self._loop.call_at(due_s, self._arrive, context=self._kernel)

    def _arrive(self) -> None:
        self.arrive(self._travelling.popleft())


class SimulatedStream:
    """One end of a connection. Its handler runs in the context of its process.

    Attributes:
        is_gone: Whether the process has ended: its kernel answers what arrives with a reset, once it runs again.
    """

    def __init__(
        self,
        peer_host: str,
        handler: StreamHandler,
        outgoing: Wire,
        context: Context,
        file_system: FileSystem | None,
        is_powered: Callable[[], bool],
    ) -> None:
        self.peer_host = peer_host
        self.is_closed = False
        self.is_gone = False
        self._loop = asyncio.get_running_loop()
        self._handler = handler
        self._outgoing = outgoing
        self._context = context
        self._file_system = file_system
        self._is_powered = is_powered
        self._received: deque[memoryview] = deque()
        self._is_paused = False
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
        if not self.is_closed:
            self._outgoing.send(b"".join(map(self._bytes, parts)))

    def _bytes(self, part: Part) -> bytes:
        if isinstance(part, FileSlice):
            assert self._file_system is not None
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
        if not self.is_closed:
            self._outgoing.send(None)
            self._lose(None)

    # -- of the kernel

    def arrived(self, item: Item) -> None:
        """Hand an item to the process; without one, answer with a reset."""
        if not self.is_gone:
            self._loop.call_soon(self._receive, item, context=self._context)
        elif isinstance(item, bytes) and self._is_powered():
            self._outgoing.send(_reset())

    def end(self, *, silently: bool) -> None:
        """The process is gone; its peer learns it by the end of the connection, or `silently` not."""
        self.is_gone = True
        if not (silently or self.is_closed):
            self._outgoing.send(None)

    def reset(self) -> None:
        """Lose the connection at this end, now."""
        self._loop.call_soon(self._receive, _reset(), context=self._context)

    # -- of the process

    def _receive(self, item: Item) -> None:
        if self.is_closed:
            if isinstance(item, bytes):
                self._outgoing.send(_reset())
        elif isinstance(item, bytes):
            self._received.append(memoryview(item))
            self._deliver()
        else:
            self._lose(item)

    def _lose(self, error: OSError | None) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._received.clear()
            self._handler.connection_lost(error)

    def _deliver(self) -> None:
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while self._received and not self._is_paused and not self.is_closed:
                data = self._received.popleft()
                buffer = self._handler.get_buffer()
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                if size < len(data):
                    self._received.appendleft(data[size:])
                self._handler.buffer_updated(size)
        finally:
            self._is_delivering = False


def _reset() -> OSError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
