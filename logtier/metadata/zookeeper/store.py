"""The metadata store of a cluster of several brokers: ZooKeeper."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from headwater.logtier.metadata.level_watches import FireWatch, LevelWatches
from headwater.logtier.metadata.session_callbacks import SessionCallbacks
from headwater.logtier.metadata.store import (
    ANY_VERSION,
    MetadataStoreError,
    MultiResult,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SessionCallback,
    SessionExpiredError,
    SessionState,
    StoredNode,
    StoreUnavailableError,
    WatchCallback,
    check_multi_bytes,
    check_node_bytes,
    check_path,
)
from headwater.logtier.metadata.zookeeper.session import ZooKeeperSession
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
from headwater.logtier.metadata.zookeeper.store_session import LoginRefusedError, MakeSession, StoreSession

log = logging.getLogger(__name__)

READ_BATCH: Final = 1000
"""Tasks of `get_many` at a time; the session bounds the requests of them that are sent."""

READ_BACK_S: Final = 0.1
"""Wait before a node is read again that could not be read while the session was connected."""


class ZooKeeperStore:
    """The nodes below the chroot of a ZooKeeper, for one broker.

    Invariant: `state` and `session_id` are those of the newest session; once LOST was reported, nothing of the old
    session reaches a caller. Watches and callbacks outlast sessions.

    kazoo's threads run none of this: see KazooHandler.
    """

    def __init__(self, settings: ZooKeeperSettings, make_session: MakeSession = ZooKeeperSession) -> None:
        """`make_session` returns a session that has not begun: a simulation has its own."""
        self._settings = settings
        self._make_session = make_session
        self._session: StoreSession | None = None
        self._state = SessionState.LOST
        self._session_callbacks = SessionCallbacks()
        self._watches = LevelWatches(self._arm, lambda: self._state is SessionState.CONNECTED)

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        return self._state

    @property
    def session_id(self) -> int:
        """ZooKeeper's id of the session, 0 while there is none."""
        return self._session.id if self._session is not None and self._state is not SessionState.LOST else 0

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin a session, and create the chroot if it does not exist and the settings say so.

        Raises:
            StoreUnavailableError: ZooKeeper is not reached in zookeeper.connection.timeout.ms, refuses the login, or
                does not admit the chroot.
            ConfigError: A file of the TLS configuration cannot be used.
        """
        assert self._state is SessionState.LOST, "the store has a session"
        self._settings.tls_context()
        session = self._make_session(self._settings, lambda state: self._heard(session, state))
        session.begin()
        try:
            async with asyncio.timeout(self._settings.start_timeout_s()):
                await session.established()
                if self._settings.creates_chroot:
                    await self._create_chroot(session)
            session.chroot = self._settings.chroot
        except BaseException as error:
            await session.end()
            if isinstance(error, TimeoutError | LoginRefusedError | MetadataStoreError):
                raise self._start_error(session, error) from None
            raise
        self._session = session
        self._enter(SessionState.CONNECTED)
        if session.state is not SessionState.CONNECTED:
            self._enter(session.state)

    def _start_error(self, session: StoreSession, error: Exception) -> StoreUnavailableError:
        connect = self._settings.connect
        if isinstance(error, LoginRefusedError):
            return StoreUnavailableError(
                connect,
                f"ZooKeeper refuses the login of {self._settings.username or 'a broker without user name'}; check user "
                "name and password",
            )
        if isinstance(error, NoAuthError):
            return StoreUnavailableError(
                connect, f"ZooKeeper does not admit this login to {error.path}; correct the chroot or its access"
            )
        reason = session.connect_failure or (str(error) if not isinstance(error, TimeoutError) else "no answer")
        return StoreUnavailableError(
            connect, f"ZooKeeper cannot be reached ({reason}); check zookeeper.connect, and that ZooKeeper runs"
        )

    async def _create_chroot(self, session: StoreSession) -> None:
        """Create the nodes of the chroot that do not exist, as Kafka does."""
        parts = self._settings.chroot.split("/")[1:]
        # Its parents may admit others only.
        if await session.exists(self._settings.chroot or "/"):
            return
        for count in range(1, len(parts) + 1):
            path = "/" + "/".join(parts[:count])
            try:
                # Several applications may share the parents of the chroot.
                await session.create(path, b"", is_shared=count < len(parts))
            except NodeExistsError:
                log.debug("%s exists already", path)
            except NoAuthError:
                # The parents may exist, and admit others only to what is below them.
                if count == len(parts):
                    raise

    async def close(self) -> None:
        """End the session, and with it its ephemeral nodes."""
        await self._watches.close()
        session, self._session = self._session, None
        if session is not None:
            await session.end()
        if self._state is not SessionState.LOST:
            self._enter(SessionState.LOST)

    def on_session(self, callback: SessionCallback) -> Callable[[], None]:
        """Call `callback` with each new state of the session, until the returned function is called."""
        return self._session_callbacks.add(callback)

    def _heard(self, session: StoreSession, state: SessionState) -> None:
        if session is self._session:
            self._enter(state)

    def _enter(self, state: SessionState) -> None:
        self._state = state
        if state is SessionState.LOST:
            self._session = None
        self._session_callbacks.report(state)
        # A callback may have closed the store.
        if self._state is SessionState.CONNECTED:
            self._watches.connected()

    # -- nodes -------------------------------------------------------------------------------------------------------

    async def sync(self) -> None:
        """Wait until reads show all changes that any client has had confirmed before this call."""
        await self._live("/").sync("/")

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> int:
        """Create a node; return its czxid."""
        check_node_bytes(path, data)
        session = self._live(path)
        if not ephemeral:
            return await session.create(path, data)
        is_repeated = False
        while True:
            try:
                return await session.create(path, data, ephemeral=True)
            except SessionExpiredError:
                raise
            except NodeExistsError:
                if not is_repeated:
                    raise
            except StoreUnavailableError:
                pass
            node = await _read_back(session, path)
            if node is not None:
                if node.ephemeral_owner == session.id:
                    return node.czxid
                raise NodeExistsError(path, "the node exists already")
            is_repeated = True

    async def get(self, path: str) -> StoredNode:
        """Return a node."""
        return await self._live(path).get(path)

    async def get_many(self, paths: Sequence[str]) -> list[StoredNode | None]:
        """Return the nodes of all paths, None where there is none."""
        found: list[StoredNode | None] = []
        for first in range(0, len(paths), READ_BATCH):
            found += await asyncio.gather(*map(self._get_if_there, paths[first : first + READ_BATCH]))
        return found

    async def _get_if_there(self, path: str) -> StoredNode | None:
        try:
            return await self.get(path)
        except NoNodeError:
            return None

    async def set(self, path: str, data: bytes, expected_version: int = ANY_VERSION) -> int:
        """Replace a node's data; return its new version."""
        check_node_bytes(path, data)
        return await self._live(path).set(path, data, expected_version)

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Delete a node."""
        if path == "/":
            raise NotEmptyError(path, "the root cannot be deleted")
        await self._live(path).delete(path, expected_version)

    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children, sorted."""
        return await self._live(path).children(path)

    async def exists(self, path: str) -> bool:
        """Whether the node exists."""
        return await self._live(path).exists(path)

    async def multi(self, operations: Sequence[Operation]) -> MultiResult:
        """Execute all operations or none."""
        if not operations:
            return MultiResult([], 0)
        check_multi_bytes(operations)
        for operation in operations:
            check_path(operation.path)
        return await self._live(operations[0].path).multi(operations)

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        """Call `callback` with the path after changes of a node or of its set of children."""
        return self._watches.add(path, callback)

    async def _arm(self, path: str, fire: FireWatch) -> None:
        await self._live(path).arm(path, fire)

    def _live(self, path: str) -> StoreSession:
        check_path(path)
        if self._session is None:
            raise SessionExpiredError(path, "there is no session with ZooKeeper")
        return self._session


async def _read_back(session: StoreSession, path: str) -> StoredNode | None:
    """Return a node as it is after all requests of the session so far; SessionExpiredError."""
    while True:
        await session.connected()
        try:
            await session.sync(path)
            return await session.get(path)
        except NoNodeError:
            return None
        except SessionExpiredError:
            raise
        except StoreUnavailableError:
            # The connection was lost again, or is about to be reported as lost.
            await asyncio.sleep(READ_BACK_S)
