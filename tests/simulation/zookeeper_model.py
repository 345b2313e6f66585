"""ZooKeeper in memory: one server and its clients on one event loop, whose time may be virtual.

The product's own ZooKeeperStore runs on it: the model takes the place of `ZooKeeperSession`, that is of kazoo, the
network and the server. Versions, transactions, ephemeral nodes, sessions that expire, one-shot watches, and the order
of requests and answers are ZooKeeper's. The contract suite of the stores holds the model to the real server.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headwater.logtier.metadata import store
from headwater.logtier.metadata.level_watches import FireWatch
from headwater.logtier.metadata.store import (
    Create,
    Delete,
    MultiResult,
    Operation,
    SessionState,
    SetData,
    StoredNode,
    parent_path,
)
from headwater.logtier.metadata.tree import NodeTree
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
from headwater.logtier.metadata.zookeeper.store import ZooKeeperStore

LATENCY_S = (0.0005, 0.005)
"""Bounds of the time that a message takes, one way."""

RECONNECT_S = 0.3
"""Time between a client's attempts to connect, as with the settings for kazoo."""

FIRST_ZXID = 1 << 32


@dataclass
class _ServerSession:
    """What the server knows of a session: its connection, and since when it has heard nothing."""

    session_id: int
    timeout_s: float
    heard_s: float = 0.0
    link: _Link | None = None
    timer: asyncio.TimerHandle | None = None


class ZooKeeperModel:
    """The server, and the faults of it and of the network.

    Invariant: requests of one connection take effect in the order they were sent, and its answers and events arrive in
    the order they came about. Each client's callbacks run in the context in which its session began, and the server's
    in that of the model: a simulator that holds the callbacks of a context freezes a broker and nothing else.

    `prng` decides latencies, and how many of the requests in flight take effect when a connection is lost.
    """

    def __init__(self, prng: random.Random) -> None:
        self.prng = prng
        self._tree = NodeTree()
        self._zxid = FIRST_ZXID
        self._sessions: dict[int, _ServerSession] = {}
        self._session_ids = 0x1000000
        self._clients: dict[str, ModelSession] = {}
        self._context = contextvars.copy_context()
        self._is_up = True
        self._is_frozen = False
        # What lies in the server's sockets while it is frozen.
        self._unread: deque[Callable[[], None]] = deque()
        #: Called with path and data of the nodes that each transaction has changed, None for one that is gone.
        self.on_change: Callable[[list[tuple[str, bytes | None]]], None] = lambda _: None
        # Clients whose messages do not pass: (to the server, to the client).
        self._cuts: dict[str, tuple[bool, bool]] = {}

    # -- for tests ---------------------------------------------------------------------------------------------------

    def store(
        self, name: str, session_timeout_ms: int = 6000, connection_timeout_ms: int | None = None
    ) -> ZooKeeperStore:
        """Return a client's store; `name` stands for it in the faults, and may be used again after a crash."""
        settings = ZooKeeperSettings(
            "model:2181", session_timeout_ms=session_timeout_ms, connection_timeout_ms=connection_timeout_ms
        )
        return ZooKeeperStore(settings, partial(ModelSession, self, name))

    def nodes(self) -> dict[str, StoredNode]:
        """Return all nodes as they are now, by path: for checkers."""
        found = {}
        todo = ["/"]
        while todo:
            path = todo.pop()
            found[path] = self._tree.stored(path)
            todo += [f"{path.rstrip('/')}/{name}" for name in self._tree.children(path)]
        return found

    def session_ids(self) -> list[int]:
        """Return the ids of the sessions that the server knows."""
        return sorted(self._sessions)

    # -- faults ------------------------------------------------------------------------------------------------------

    def lose_connection(self, name: str, happened: bool | None = None) -> None:
        """Reset a client's connection.

        Its requests in flight take effect if `happened`, and do not if it is false; None leaves it to chance, after
        which of them the connection was lost. No answer arrives.
        """
        client = self._clients.get(name)
        if client is not None and client.link is not None:
            self._reset(client.link, happened)

    def cut(self, name: str, *, requests: bool = True, answers: bool = True) -> None:
        """Let a client's messages pass no more, in one direction or both, without telling anyone, until `heal`."""
        self._cuts[name] = (requests, answers)

    def heal(self, name: str) -> None:
        """End a cut: the messages of connections that have outlasted it arrive late."""
        self._cuts.pop(name, None)
        client = self._clients.get(name)
        if client is not None and client.link is not None:
            client.link.pump()

    def crash(self, name: str) -> None:
        """End a client as kill -9 does: its connection is reset, its session runs out, it hears nothing any more."""
        client = self._clients.pop(name, None)
        if client is not None:
            client.is_dead = True
            if client.link is not None:
                self._reset(client.link, None)

    def expire(self, session_id: int) -> None:
        """End a session, as if nothing had been heard of it for its timeout."""
        self._expire(self._sessions[session_id])

    def freeze(self) -> None:
        """Stop a running server: connections stay, nothing is answered, no session ends until `thaw`."""
        self._is_frozen = self._is_up

    def thaw(self) -> None:
        """Let the server go on. What of the sessions has run out meanwhile ends first, as measured."""
        if not self._is_frozen:
            return  # it has been killed since
        self._is_frozen = False
        for session in list(self._sessions.values()):
            self._check_expiry(session)
        while self._unread:
            self._unread.popleft()()

    def kill(self) -> None:
        """Kill the server; what it confirmed is on its disk."""
        self._is_up = self._is_frozen = False
        self._unread.clear()
        for session in self._sessions.values():
            if session.link is not None:
                self._reset(session.link, None)

    def restart(self) -> None:
        """Start the server again: sessions get their full time anew."""
        self._is_up = True
        self._zxid = ((self._zxid >> 32) + 1) << 32
        for session in self._sessions.values():
            self._hear(session)
            self._time(session)

    # -- the server --------------------------------------------------------------------------------------------------

    def latency_s(self) -> float:
        return self.prng.uniform(*LATENCY_S)

    def passes(self, name: str, *, to_server: bool) -> bool:
        cut = self._cuts.get(name)
        return cut is None or not cut[0 if to_server else 1]

    def attach(self, client: ModelSession) -> None:
        self._clients[client.name] = client

    def at_server(self, delay_s: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        """Run a step of the server later."""
        return asyncio.get_running_loop().call_later(delay_s, self._step, act, context=self._context)

    def _step(self, act: Callable[[], None]) -> None:
        if self._is_frozen:
            self._unread.append(act)
        elif self._is_up:
            act()

    def accept(self, link: _Link, session_id: int, timeout_s: float) -> int:
        """Begin a session, or continue one on a new connection; return its id, 0 if it has expired."""
        if not session_id:
            self._session_ids += 1
            session_id = self._session_ids
            self._zxid += 1
            session = self._sessions[session_id] = _ServerSession(session_id, timeout_s)
        elif session_id in self._sessions:
            session = self._sessions[session_id]
        else:
            return 0
        if session.link is not None:
            session.link.is_open = False
        session.link = link
        self._hear(session)
        if session.timer is None:
            self._time(session)
        return session_id

    def _hear(self, session: _ServerSession) -> None:
        session.heard_s = asyncio.get_running_loop().time()

    def _time(self, session: _ServerSession) -> None:
        """Look at a session again when it will have run out unless something is heard of it until then."""
        if session.timer is not None:
            session.timer.cancel()
        rest_s = session.heard_s + session.timeout_s - asyncio.get_running_loop().time()
        session.timer = self.at_server(rest_s, partial(self._check_expiry, session))

    def _check_expiry(self, session: _ServerSession) -> None:
        if self._sessions.get(session.session_id) is not session:
            return
        # Rounded: a timer may fire a moment early.
        if asyncio.get_running_loop().time() - session.heard_s > session.timeout_s - 1e-6:
            self._expire(session)
        else:
            self._time(session)

    def _expire(self, session: _ServerSession) -> None:
        """End a session and its ephemeral nodes, in one transaction; close its connection."""
        del self._sessions[session.session_id]
        if session.timer is not None:
            session.timer.cancel()
        self._zxid += 1
        mine = self._tree.ephemeral_paths(session.session_id)
        self._apply([Delete(path) for path in mine], session.session_id)
        if session.link is not None:
            self._reset(session.link, happened=False)

    def end(self, session_id: int) -> None:
        """End a session at its client's wish."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.link = None
            self._expire(session)

    def receive(self, link: _Link, request: _Request) -> None:
        """Execute a request of a connection, and answer it."""
        session = self._sessions.get(link.session_id)
        if session is None or session.link is not link:
            return
        self._hear(session)
        if request.execute is None:
            link.to_client(_Answer(request))
            return
        try:
            result = request.execute(self, link)
        except store.MetadataStoreError as error:
            link.to_client(_Answer(request, error=error))
        else:
            link.to_client(_Answer(request, result))

    def read(self, path: str) -> StoredNode:
        return self._tree.stored(path)

    def list(self, path: str) -> list[str]:
        return self._tree.children(path)

    def has(self, path: str) -> bool:
        return self._tree.exists(path)

    def write(self, operations: Sequence[Operation], session_id: int) -> MultiResult:
        """Execute a transaction. One that is refused has a zxid, too, as at the real server."""
        self._zxid += 1
        return self._apply(operations, session_id)

    def _apply(self, operations: Sequence[Operation], session_id: int) -> MultiResult:
        prepared = self._tree.prepare(operations, self._zxid, session_id)
        fired: list[tuple[str, bool]] = []
        for path, node in prepared.changes.items():
            came_or_went = node is None or node.czxid == self._zxid
            fired.append((path, False))
            if came_or_went:
                fired.append((parent_path(path), True))
            if node is None:
                fired.append((path, True))
        self._tree.load(prepared.changes.items())
        self.on_change([(path, None if node is None else node.data) for path, node in prepared.changes.items()])
        for session in list(self._sessions.values()):
            if session.link is not None:
                for watch in fired:
                    session.link.fire(watch)
        return MultiResult(prepared.versions, self._zxid)

    def _reset(self, link: _Link, happened: bool | None) -> None:
        """Close a connection: some of its requests in flight take effect, none of its answers arrives."""
        if not link.is_open:
            return
        flying = list(link.requests)
        arrived = len(flying) if happened else 0 if happened is False else self.prng.randint(0, len(flying))
        link.requests.clear()
        for request in flying[:arrived]:
            self._step(partial(self.receive, link, request))
        link.is_open = False
        link.answers.clear()
        session = self._sessions.get(link.session_id)
        if session is not None and session.link is link:
            session.link = None
        link.client.later(self.latency_s(), partial(link.client.connection_lost, link))


@dataclass(eq=False)
class _Request:
    """A request; without `execute` a ping."""

    execute: Callable[[ZooKeeperModel, _Link], Any] | None
    answer: asyncio.Future[Any] | None = None


@dataclass(eq=False)
class _Answer:
    """An answer or, without a request, a watch event."""

    request: _Request | None
    result: Any = None
    error: store.MetadataStoreError | None = None
    event_path: str = ""


@dataclass(eq=False)
class _Link:
    """One connection: messages in flight, in order, and the watches that the server keeps for it."""

    model: ZooKeeperModel
    client: ModelSession
    session_id: int = 0
    is_open: bool = True
    requests: deque[_Request] = field(default_factory=deque)
    answers: deque[_Answer] = field(default_factory=deque)
    watches: dict[tuple[str, bool], None] = field(default_factory=dict)

    def to_server(self, request: _Request) -> None:
        self.requests.append(request)
        self.model.at_server(self.model.latency_s(), self._arrive)

    def to_client(self, answer: _Answer) -> None:
        if self.is_open:
            self.answers.append(answer)
            self.client.later(self.model.latency_s(), self._deliver)

    def fire(self, watch: tuple[str, bool]) -> None:
        """Send an event if a one-shot watch of (path, whether of its children) is set."""
        if watch in self.watches:
            del self.watches[watch]
            self.to_client(_Answer(None, event_path=watch[0]))

    def pump(self) -> None:
        """Deliver what a cut has held up."""
        for _ in range(len(self.requests)):
            self.model.at_server(self.model.latency_s(), self._arrive)
        for _ in range(len(self.answers)):
            self.client.later(self.model.latency_s(), self._deliver)

    def _arrive(self) -> None:
        # Each message has a step, which takes the oldest: the order holds whatever the latencies are.
        if self.requests and self.model.passes(self.client.name, to_server=True):
            self.model.receive(self, self.requests.popleft())

    def _deliver(self) -> None:
        if self.answers and self.is_open and self.model.passes(self.client.name, to_server=False):
            self.client.hear(self.answers.popleft())


class ModelSession:
    """A client's session: what ZooKeeperSession is to the real server.

    As kazoo's, it reconnects by itself, pings each third of the session timeout, gives up a connection on which a ping
    was not answered until the next, and learns of the session's end only from the server.
    """

    def __init__(
        self, model: ZooKeeperModel, name: str, settings: ZooKeeperSettings, on_state: Callable[[SessionState], None]
    ) -> None:
        self.name = name
        self.id = 0
        self.state = SessionState.SUSPENDED
        self.chroot = ""
        self.connect_failure = ""
        self.link: _Link | None = None
        self.is_dead = False
        self._model = model
        self._timeout_s = settings.session_timeout_ms / 1000
        self._on_state = on_state
        self._context = contextvars.copy_context()
        self._unanswered: dict[_Request, None] = {}
        self._fires: dict[str, FireWatch] = {}
        self._is_ping_outstanding = False
        self._changed: list[asyncio.Future[None]] = []

    # -- the life of a session ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._model.attach(self)
        self._connect()

    async def end(self) -> None:
        link, self.link = self.link, None
        if link is not None and self.id:
            self._model.at_server(self._model.latency_s(), partial(self._model.end, self.id))
        self.is_dead = True
        self._enter(SessionState.LOST)

    async def connected(self) -> None:
        while self.state is not SessionState.CONNECTED:
            if self.state is SessionState.LOST:
                raise _expired()
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._changed.append(changed)
            await changed

    async def established(self) -> None:
        await self.connected()

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Run a step of this client later, unless it has crashed."""

        def step() -> None:
            if not self.is_dead:
                act()

        asyncio.get_running_loop().call_later(delay_s, step, context=self._context)

    def _connect(self) -> None:
        if self.state is SessionState.LOST:
            return
        link = self.link = _Link(self._model, self)
        if self._model.passes(self.name, to_server=True) and self._model.passes(self.name, to_server=False):
            self._model.at_server(self._model.latency_s(), partial(self._shake_hands, link))
        self.later(RECONNECT_S, partial(self._give_up, link))

    def _give_up(self, link: _Link) -> None:
        """Connect anew, without an answer to the handshake."""
        if link is self.link and not link.session_id:
            self.connect_failure = "no answer"
            link.is_open = False
            self._connect()

    def _shake_hands(self, link: _Link) -> None:
        """The server's part."""
        if not link.is_open:
            return
        link.session_id = session_id = self._model.accept(link, self.id, self._timeout_s)
        self.later(self._model.latency_s(), partial(self._greeted, link, session_id))

    def _greeted(self, link: _Link, session_id: int) -> None:
        if link is not self.link or not link.is_open or not self._model.passes(self.name, to_server=False):
            if link is self.link:
                link.session_id = 0
            return
        if not session_id:
            self.link = None
            self._enter(SessionState.LOST)
            return
        self.id = session_id
        self._is_ping_outstanding = False
        self._enter(SessionState.CONNECTED)
        self.later(self._timeout_s / 3, partial(self._ping, link))

    def _ping(self, link: _Link) -> None:
        if link is not self.link or not link.is_open:
            return
        if self._is_ping_outstanding:
            link.is_open = False
            self.connection_lost(link)
            return
        self._is_ping_outstanding = True
        link.to_server(_Request(None))
        self.later(self._timeout_s / 3, partial(self._ping, link))

    def connection_lost(self, link: _Link) -> None:
        """Suspend, and connect anew."""
        if link is self.link:
            self.link = None
            if self.state is not SessionState.LOST:
                self._enter(SessionState.SUSPENDED)
                self._connect()

    def _enter(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            unanswered = list(self._unanswered)
            self._unanswered.clear()
            for request in unanswered:
                if request.answer is not None and not request.answer.done():
                    request.answer.set_exception(_expired() if state is SessionState.LOST else _lost())
        changed = state is not self.state
        self.state = state
        for waiting in self._changed:
            if not waiting.done():
                waiting.set_result(None)
        self._changed.clear()
        if changed:
            self._on_state(state)

    def hear(self, answer: _Answer) -> None:
        """Take an answer or an event."""
        request = answer.request
        if request is None:
            self._fires[answer.event_path](None)
            return
        self._unanswered.pop(request, None)
        if request.execute is None:
            self._is_ping_outstanding = False
        if request.answer is None or request.answer.done():
            return
        if answer.error is not None:
            request.answer.set_exception(answer.error)
        else:
            request.answer.set_result(answer.result)

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _request(self, execute: Callable[[ZooKeeperModel, _Link], Any]) -> Any:
        if self.state is SessionState.LOST:
            raise _expired()
        if self.state is SessionState.SUSPENDED or self.link is None:
            raise _lost()
        request = _Request(execute, asyncio.get_running_loop().create_future())
        self._unanswered[request] = None
        self.link.to_server(request)
        assert request.answer is not None
        return await request.answer

    async def sync(self, path: str) -> None:
        await self._request(lambda model, _: None)

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False, is_shared: bool = False) -> int:
        return (await self.multi([Create(path, data, ephemeral)])).zxid

    async def get(self, path: str) -> StoredNode:
        node: StoredNode = await self._request(lambda model, _: model.read(path))
        return node

    async def set(self, path: str, data: bytes, expected_version: int) -> int:
        return (await self.multi([SetData(path, data, expected_version)])).versions[0]

    async def delete(self, path: str, expected_version: int) -> None:
        await self.multi([Delete(path, expected_version)])

    async def children(self, path: str) -> list[str]:
        names: list[str] = await self._request(lambda model, _: model.list(path))
        return names

    async def exists(self, path: str) -> bool:
        return bool(await self._request(lambda model, _: model.has(path)))

    async def multi(self, operations: Sequence[Operation]) -> MultiResult:
        result: MultiResult = await self._request(lambda model, link: model.write(operations, link.session_id))
        return result

    async def arm(self, path: str, fire: FireWatch) -> None:
        self._fires[path] = fire

        def watch_node(model: ZooKeeperModel, link: _Link) -> bool:
            link.watches[path, False] = None
            return model.has(path)

        def watch_children(model: ZooKeeperModel, link: _Link) -> None:
            if model.has(path):
                link.watches[path, True] = None

        if await self._request(watch_node):
            await self._request(watch_children)


def _expired() -> store.SessionExpiredError:
    return store.SessionExpiredError("/", "the session with ZooKeeper has expired")


def _lost() -> store.StoreUnavailableError:
    return store.StoreUnavailableError("/", "the connection to ZooKeeper is lost")
