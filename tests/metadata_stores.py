"""Metadata stores of each kind, with the faults that the kind has, for tests that all of them must pass."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.metadata.store import MetadataStore, NoNodeError, StoredNode, StoreUnavailableError
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
from headwater.logtier.metadata.zookeeper.store import ZooKeeperStore
from headwater.logtier.runtime.disk import RealDisk
from tests.cutting_proxy import CuttingProxy
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.zookeeper_model import ZooKeeperModel
from tests.zookeeper import ZooKeeperServer

PATIENCE_S = 90
LONG_SESSION_MS = 10_000
"""No pause of a busy machine ends it; the most that a server with the tests' tick admits."""
SHORT_SESSION_MS = 2_000
"""For tests that let a session run out."""

PING_BYTES = 20


class Stores(Protocol):
    """Clients of one store. Names of clients serve the faults."""

    @property
    def has_faults(self) -> bool:
        """Whether there are several clients, and connections to lose."""

    async def open(self, name: str = "a", session_timeout_ms: int = LONG_SESSION_MS) -> MetadataStore:
        """Start a client."""

    async def close(self) -> None:
        """Close all clients."""

    def cut(self, name: str) -> None:
        """Let nothing of a client pass, and tell nobody, until `heal`."""

    def heal(self, name: str) -> None:
        """End a cut."""

    def lose_connection(self, name: str) -> None:
        """Reset a client's connection."""

    async def ambiguous(self, name: str, request: Coroutine[Any, Any, object], happened: bool) -> BaseException | None:
        """Lose the connection while a request is under way, before or after it takes effect; return its error."""

    def freeze_server(self) -> None:
        """Stop the server's process."""

    def thaw_server(self) -> None:
        """Let it go on."""

    def kill_server(self) -> None:
        """Kill it."""

    async def restart_server(self) -> None:
        """Start it again, after `kill_server`."""

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run a scenario on an event loop, and close all clients."""


class LocalStores:
    """The folder of one node: one client, no connection."""

    has_faults = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: list[LocalMetadataStore] = []

    async def open(self, name: str = "a", session_timeout_ms: int = LONG_SESSION_MS) -> MetadataStore:
        store = LocalMetadataStore(str(self._folder), RealDisk())
        await store.start()
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        asyncio.run(_closed_after(self, scenario))

    def _no_faults(self, *arguments: object) -> Any:
        raise AssertionError("a local store has no connection")

    cut = heal = lose_connection = ambiguous = _no_faults
    freeze_server = thaw_server = kill_server = restart_server = _no_faults


class ModelStores:
    """The model, in virtual time."""

    has_faults = True

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self.model = ZooKeeperModel(random.Random(seed))
        self._opened: list[ZooKeeperStore] = []

    async def open(self, name: str = "a", session_timeout_ms: int = LONG_SESSION_MS) -> MetadataStore:
        store = self.model.store(name, session_timeout_ms)
        await store.start()
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()

    def cut(self, name: str) -> None:
        self.model.cut(name)

    def heal(self, name: str) -> None:
        self.model.heal(name)

    def lose_connection(self, name: str) -> None:
        self.model.lose_connection(name)

    async def ambiguous(self, name: str, request: Coroutine[Any, Any, object], happened: bool) -> BaseException | None:
        task = asyncio.ensure_future(request)
        await asyncio.sleep(0)
        self.model.lose_connection(name, happened)
        [result] = await asyncio.gather(task, return_exceptions=True)
        return result if isinstance(result, BaseException) else None

    def freeze_server(self) -> None:
        self.model.freeze()

    def thaw_server(self) -> None:
        self.model.thaw()

    def kill_server(self) -> None:
        self.model.kill()

    async def restart_server(self) -> None:
        self.model.restart()

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(random.Random(self._seed))) as runner:
            runner.run(_closed_after(self, scenario))


class RealStores:
    """Clients of a real server, each through a proxy of its own; `root` is this test's part of the server."""

    has_faults = True

    def __init__(self, server: ZooKeeperServer, root: str) -> None:
        self._server = server
        self._root = root
        self._opened: list[ZooKeeperStore] = []
        self._proxies: dict[str, CuttingProxy] = {}

    async def open(self, name: str = "a", session_timeout_ms: int = LONG_SESSION_MS) -> MetadataStore:
        if name not in self._proxies:
            proxy = self._proxies[name] = CuttingProxy(self._server.port)
            await proxy.start()
        connect = f"127.0.0.1:{self._proxies[name].port}{self._root}"
        store = ZooKeeperStore(ZooKeeperSettings(connect, session_timeout_ms, PATIENCE_S * 1000))
        await store.start()
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()
        for proxy in self._proxies.values():
            await proxy.stop()

    def cut(self, name: str) -> None:
        self._proxies[name].hold()

    def heal(self, name: str) -> None:
        self._proxies[name].release()

    def lose_connection(self, name: str) -> None:
        self._proxies[name].reset()

    async def ambiguous(self, name: str, request: Coroutine[Any, Any, object], happened: bool) -> BaseException | None:
        proxy = self._proxies[name]
        proxy.hold(requests=not happened, answers=happened)
        task = asyncio.ensure_future(request)
        if happened:
            # An answer that is longer than that to a ping.
            await until(lambda: proxy.held_answers > PING_BYTES)
        else:
            await asyncio.sleep(0.05)
        proxy.reset()
        proxy.release()
        [result] = await asyncio.gather(task, return_exceptions=True)
        return result if isinstance(result, BaseException) else None

    def freeze_server(self) -> None:
        self._server.freeze()

    def thaw_server(self) -> None:
        self._server.thaw()

    def kill_server(self) -> None:
        self._server.kill()

    async def restart_server(self) -> None:
        self._server.start()
        await asyncio.to_thread(self._server.await_ready)

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        asyncio.run(_closed_after(self, scenario))


async def _closed_after(stores: Stores, scenario: Callable[[], Awaitable[None]]) -> None:
    try:
        await scenario()
    finally:
        await stores.close()


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Return when a condition holds; what the store cannot answer meanwhile does not count."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + PATIENCE_S
    while True:
        try:
            result = condition()
            if result if isinstance(result, bool) else await result:
                return
        except StoreUnavailableError:
            pass
        assert loop.time() < deadline_s, "it does not come true"
        await asyncio.sleep(0.02)


async def tree(store: MetadataStore, path: str = "/") -> dict[str, StoredNode]:
    """Return all nodes at or below a path."""
    found: dict[str, StoredNode] = {}
    todo = [path]
    while todo:
        path = todo.pop()
        try:
            found[path] = await store.get(path)
            todo += [f"{path.rstrip('/')}/{name}" for name in await store.children(path)]
        except NoNodeError:
            found.pop(path, None)
    return found
