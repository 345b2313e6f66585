"""One session with ZooKeeper: kazoo's client, whose results and events reach the event loop in the server's order."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from headwater.logtier.metadata import store
from headwater.logtier.metadata.level_watches import FireWatch
from headwater.logtier.metadata.store import Check, Create, Delete, MultiResult, Operation, SessionState, StoredNode
from headwater.logtier.metadata.zookeeper.kazoo_handler import KazooHandler
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
from headwater.logtier.metadata.zookeeper.store_session import LoginRefusedError

log = logging.getLogger(__name__)
# kazoo reports each attempt to connect as a warning; what matters of it this package reports.
_kazoo_log: Final = log.getChild("kazoo")
_kazoo_log.setLevel(logging.ERROR)
_kazoo_log.addFilter(
    lambda record: not (record.exc_info and record.exc_info[0] is exceptions.SessionClosedRequireSaslError)
)

IN_FLIGHT_MAX: Final = 64
"""Requests that wait for an answer. kazoo wakes its thread by a byte each on a socket that blocks when about 200 lie
there unread, and that would block the event loop. 64 nodes of 1 MB are also as much as answers may take at once."""

HANDSHAKES_MAX: Final = 6
"""kazoo waits for a server to answer the handshake as long as the session timeout divided by the hosts in its list. A
server that has just been started listens before it answers, and that wait alone can end the session: with a session of
9 s, a client was back 8.1 s after the server with the host once in the list, and at once with it six times. So hosts
are named several times, ..."""

HANDSHAKE_MS_MIN: Final = 1000
"""... but leave the handshake this long, on a busy machine and with short sessions, too."""

RECONNECT_S: Final = 0.1
RECONNECT_S_MAX: Final = 0.5
"""Waits between rounds through the hosts. kazoo's default of up to a minute outlasts sessions. The growth by 2 matters:
with none, kazoo multiplies each wait by its jitter, and the waits wander towards 0."""

END_S: Final = 5.0
"""How long the end of a session may wait for the server's answer; a session that is not ended expires."""

_ERRORS: Final[dict[type[Exception], type[store.MetadataStoreError]]] = {
    exceptions.NodeExistsError: store.NodeExistsError,
    exceptions.NoNodeError: store.NoNodeError,
    exceptions.BadVersionError: store.BadVersionError,
    exceptions.NotEmptyError: store.NotEmptyError,
    exceptions.NoChildrenForEphemeralsError: store.NoChildrenForEphemeralsError,
    exceptions.NoAuthError: store.NoAuthError,
    exceptions.SessionExpiredError: store.SessionExpiredError,
}
_MESSAGES: Final[dict[type[store.MetadataStoreError], str]] = {
    store.NodeExistsError: "the node exists already",
    store.NoNodeError: "there is no such node",
    store.BadVersionError: "it does not have the expected version",
    store.NotEmptyError: "the node has children",
    store.NoChildrenForEphemeralsError: "its parent is ephemeral",
    store.NoAuthError: "its access control list does not admit this login",
    store.SessionExpiredError: "the session with ZooKeeper has expired",
}


class ZooKeeperSession:
    """A StoreSession with a real ZooKeeper.

    kazoo has clients, not sessions: it gives a client up when a login fails, and begins another session by itself when
    one has expired. Here a session outlives its clients, and ends once.
    """

    def __init__(self, settings: ZooKeeperSettings, on_state: Callable[[SessionState], None]) -> None:
        self._settings = settings
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._hosts = host_list(settings)
        self._handler = self._new_handler()
        self._acl = CREATOR_ALL_ACL if settings.set_acl else OPEN_ACL_UNSAFE
        self._client: KazooClient | None = None
        # Id and password of the session, once there is one.
        self._identity: tuple[int, bytes] | None = None
        self._is_refused = False
        self._is_established = False
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._slots = IN_FLIGHT_MAX
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._watching_state: list[asyncio.Future[None]] = []
        self.state = SessionState.SUSPENDED
        self.chroot = ""

    @property
    def id(self) -> int:
        """The id of the session; 0 before the first connection."""
        return self._identity[0] if self._identity else 0

    @property
    def connect_failure(self) -> str:
        """Why the last attempt to connect failed."""
        return self._handler.connect_failure

    # -- the life of a session ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start connecting; only once. After a lost connection that kazoo gives up, it is called again from here."""
        if self.state is SessionState.LOST:
            return
        self._handler = self._new_handler()
        self._slots = IN_FLIGHT_MAX
        client = self._client = self._handler.client = KazooClient(
            hosts=",".join(self._hosts),
            timeout=self._settings.session_timeout_ms / 1000,
            client_id=self._identity,
            handler=self._handler,
            connection_retry=reconnecting(),
            # The default tries once, and has another function to sleep.
            command_retry=KazooRetry(sleep_func=KazooHandler.sleep_func),
            sasl_options=self._sasl(),
            # The handler makes TLS connections.
            use_ssl=False,
            logger=_kazoo_log,
        )

        def listen(state: str) -> None:
            # On kazoo's thread.
            identity = client.client_id if state == KazooState.CONNECTED else None
            self._handler.post(self._heard, client, state, client.client_state, identity)

        def refused(refused_client: object) -> None:
            if self._client in (None, refused_client) and self.state is not SessionState.LOST:
                self._is_refused = True
                self._enter(self.state)

        self._handler.on_refusal = refused
        client.add_listener(listen)
        client.start_async()

    def _new_handler(self) -> KazooHandler:
        connect_timeout_s = self._settings.session_timeout_ms / 1000 / len(self._hosts)
        return KazooHandler(self._loop, self._settings.tls_context, connect_timeout_s)

    def _sasl(self) -> dict[str, str] | None:
        if self._settings.username is None:
            return None
        return {
            "mechanism": "DIGEST-MD5",
            "username": self._settings.username,
            "password": self._settings.password,
        }

    def _heard(self, client: KazooClient, state: str, client_state: str, identity: tuple[int, bytes] | None) -> None:
        """Follow kazoo's client. Its states are those of connections: the session may outlive the client."""
        if client is not self._client:
            return
        if state == KazooState.CONNECTED and identity is not None:
            if self._identity is not None and self._identity[0] != identity[0]:
                # kazoo begins a new session after an expiry, also when it did not report that.
                self._lose()
                return
            self._identity = identity
            self._enter(SessionState.CONNECTED)
        elif state == KazooState.SUSPENDED:
            self._enter(SessionState.SUSPENDED)
        elif client_state == KeeperState.EXPIRED_SESSION:
            self._lose()
        else:
            # The login failed, or kazoo's loop did. A connection that was lost during the login looks like a refused
            # login: the session may still be there.
            self._is_refused = client_state == KeeperState.AUTH_FAILED
            if self._is_established:
                log.warning("ZooKeeper refused the login, or the connection was lost during it; trying again")
            self._discard_client()
            self._enter(SessionState.SUSPENDED)
            self._loop.call_later(RECONNECT_S_MAX, self.begin)

    def _lose(self) -> None:
        self._discard_client()
        self._enter(SessionState.LOST)

    def _enter(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            self._fail_unanswered(state)
        changed = state is not self.state
        self.state = state
        for waiting in self._watching_state:
            if not waiting.done():
                waiting.set_result(None)
        self._watching_state.clear()
        if changed:
            self._on_state(state)

    def _discard_client(self) -> asyncio.Future[None]:
        """End kazoo's client, on a thread: that waits for the server."""
        ended: asyncio.Future[None] = self._loop.create_future()
        client, self._client = self._client, None
        if client is None:
            ended.set_result(None)
            return ended

        def end() -> None:
            try:
                client.stop()
                client.close()
            except Exception:
                log.exception("the ZooKeeper client did not end")
            finally:
                self._handler.post(_finish, ended)

        self._handler.spawn(end)
        return ended

    async def end(self) -> None:
        """End the session; without an answer of the server it expires there later."""
        self.state = SessionState.LOST
        ended = self._discard_client()
        self._enter(SessionState.LOST)
        await asyncio.wait((ended,), timeout=END_S)

    async def connected(self) -> None:
        """Wait until the session is connected: SessionExpiredError if it ends, LoginRefusedError."""
        while self.state is not SessionState.CONNECTED:
            if self.state is SessionState.LOST:
                raise _expired("/")
            await self._next_state()
            if self._is_refused and not self._is_established:
                raise LoginRefusedError

    async def established(self) -> None:
        """Wait until the server answers a request: kazoo reports a connection before the login."""
        while True:
            await self.connected()
            try:
                await self.exists("/")
            except store.SessionExpiredError:
                raise
            except store.StoreUnavailableError:
                if self._is_refused:
                    raise LoginRefusedError from None
                await asyncio.sleep(RECONNECT_S)
            else:
                self._is_refused, self._is_established = False, True
                return

    async def _next_state(self) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._watching_state.append(waiting)
        await waiting

    # -- requests ----------------------------------------------------------------------------------------------------

    async def sync(self, path: str) -> None:
        """Wait until this server has applied all that the leader had committed."""
        await self._request(path, lambda client, full: client.sync_async(full))

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False, is_shared: bool = False) -> int:
        """Create a node; return its czxid. A shared one admits everyone, also with zookeeper.set.acl."""
        acl = OPEN_ACL_UNSAFE if is_shared else self._acl
        (_, stat), _ = await self._request(
            path,
            lambda client, full: client.create_async(full, data, acl, ephemeral=ephemeral, include_data=True),
        )
        return int(stat.czxid)

    async def get(self, path: str) -> StoredNode:
        """Return a node."""
        (data, stat), _ = await self._request(path, lambda client, full: client.get_async(full))
        return StoredNode(data, stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)

    async def set(self, path: str, data: bytes, expected_version: int) -> int:
        """Replace a node's data; return its new version."""
        stat, _ = await self._request(path, lambda client, full: client.set_async(full, data, expected_version))
        return int(stat.version)

    async def delete(self, path: str, expected_version: int) -> None:
        """Delete a node."""
        await self._request(path, lambda client, full: client.delete_async(full, expected_version))

    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children, sorted."""
        names, _ = await self._request(path, lambda client, full: client.get_children_async(full))
        return sorted(names)

    async def exists(self, path: str) -> bool:
        """Whether the node exists."""
        stat, _ = await self._request(path, lambda client, full: client.exists_async(full))
        return stat is not None

    async def arm(self, path: str, fire: FireWatch) -> None:
        """Set the one-shot watches of a path. One event may fire both; a lost connection fires them, too."""
        # In this order: a node that is created after the first request fires that watch.
        stat, _ = await self._request(path, lambda client, full: client.exists_async(full, watch=fire))
        if stat is not None:
            try:
                await self._request(path, lambda client, full: client.get_children_async(full, watch=fire))
            except store.NoNodeError:
                return  # Deleted since, which fires the first watch.

    async def multi(self, operations: Sequence[Operation]) -> MultiResult:
        """Execute all operations or none."""
        results, zxid = await self._request(operations[0].path, lambda client, _: self._commit(client, operations))
        for operation, result in zip(operations, results, strict=True):
            # The operations before the failed one have the first, those after it the second of these errors.
            if isinstance(result, Exception) and not isinstance(
                result, exceptions.RolledBackError | exceptions.RuntimeInconsistency
            ):
                raise _translated(operation.path, result)
        if any(isinstance(result, Exception) for result in results):
            raise store.StoreUnavailableError(operations[0].path, "ZooKeeper rolled a transaction back")
        versions = [_version(operation, result) for operation, result in zip(operations, results, strict=True)]
        return MultiResult(versions, zxid)

    def _commit(self, client: KazooClient, operations: Sequence[Operation]) -> Any:
        transaction = client.transaction()
        for operation in operations:
            full = self._full(operation.path)
            if isinstance(operation, Create):
                transaction.create(full, operation.data, self._acl, ephemeral=operation.ephemeral)
            elif isinstance(operation, Delete):
                transaction.delete(full, operation.expected_version)
            elif isinstance(operation, Check):
                transaction.check(full, operation.expected_version)
            else:
                transaction.set_data(full, operation.data, operation.expected_version)
        return transaction.commit_async()

    def _full(self, path: str) -> str:
        return (self.chroot + path if path != "/" else self.chroot) or "/"

    async def _request(self, path: str, send: Callable[[KazooClient, str], Any]) -> tuple[Any, int]:
        """Send a request in its turn; return the answer and its zxid. A cancelled caller's request takes effect."""
        await self._slot(path)
        client = self._client
        assert client is not None, "a client is there while the session is connected"
        answer: asyncio.Future[tuple[Any, int]] = self._loop.create_future()
        self._unanswered.add(answer)
        is_answered = False

        def finish(result: Any, error: Exception | None, zxid: int) -> None:
            nonlocal is_answered
            # kazoo may set a result twice when its connection is being closed.
            if not is_answered and client is self._client:
                self._free_slot()
            is_answered = True
            if isinstance(error, exceptions.SessionClosedRequireSaslError):
                self._is_refused = True
            if isinstance(error, exceptions.ConnectionLoss) and client is self._client:
                # kazoo reports the lost connection after this: a caller that tries again must not find it connected.
                self._enter(SessionState.SUSPENDED)
            self._unanswered.discard(answer)
            if answer.done():
                return
            if error is None:
                answer.set_result((result, zxid))
            else:
                answer.set_exception(_translated(path, error))

        def hand_over(result: Any) -> None:
            # On kazoo's thread, or here if the answer is there already.
            error = result.exception
            handler.post(finish, None if error else result.value, error, result.zxid)

        handler = self._handler
        send(client, self._full(path)).rawlink(hand_over)
        return await answer

    async def _slot(self, path: str) -> None:
        """Wait for one of IN_FLIGHT_MAX places, in the order of the calls."""
        self._check_connected(path)
        if self._slots and not self._waiting:
            self._slots -= 1
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._free_slot()
            raise
        try:
            self._check_connected(path)
        except store.StoreUnavailableError:
            self._free_slot()
            raise

    def _free_slot(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._slots += 1

    def _check_connected(self, path: str) -> None:
        if self.state is SessionState.LOST:
            raise _expired(path)
        if self.state is not SessionState.CONNECTED:
            raise store.StoreUnavailableError(path, "the connection to ZooKeeper is lost")

    def _fail_unanswered(self, state: SessionState) -> None:
        unanswered: list[asyncio.Future[Any]] = [*self._unanswered, *self._waiting]
        self._unanswered.clear()
        self._waiting.clear()
        for answer in unanswered:
            if not answer.done():
                answer.set_exception(
                    _expired("/")
                    if state is SessionState.LOST
                    else store.StoreUnavailableError("/", "the connection to ZooKeeper was lost before the answer came")
                )


def reconnecting() -> KazooRetry:
    """Return the waits between rounds through the hosts."""
    return KazooRetry(
        max_tries=-1, delay=RECONNECT_S, backoff=2, max_delay=RECONNECT_S_MAX, sleep_func=KazooHandler.sleep_func
    )


def host_list(settings: ZooKeeperSettings) -> list[str]:
    """Return the hosts for kazoo, each as often as HANDSHAKES_MAX asks for."""
    wanted = max(1, min(HANDSHAKES_MAX, settings.session_timeout_ms // HANDSHAKE_MS_MIN))
    hosts = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in settings.hosts]
    return hosts * -(-wanted // len(hosts))


def _finish(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _version(operation: Operation, result: Any) -> int:
    if isinstance(operation, Create):
        return 0
    if isinstance(operation, Delete):
        return -1
    return operation.expected_version if isinstance(operation, Check) else int(result.version)


def _expired(path: str) -> store.SessionExpiredError:
    return store.SessionExpiredError(path, _MESSAGES[store.SessionExpiredError])


def _translated(path: str, error: Exception) -> store.MetadataStoreError:
    """Return the store's error for one of kazoo's."""
    if not isinstance(error, exceptions.ConnectionClosedError):
        for kind, translation in _ERRORS.items():
            if isinstance(error, kind):
                return translation(path, _MESSAGES[translation])
    reason = str(error) or type(error).__name__
    return store.StoreUnavailableError(path, f"ZooKeeper did not answer: {reason}")
