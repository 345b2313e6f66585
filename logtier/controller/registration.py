"""This broker's registration in a shared metadata store, renewed in each session."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headwater.logtier.config import ConfigError, Endpoint
from headwater.logtier.controller.failure_log import FailureLog
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.cluster_identity import ClusterGoneError, OtherClusterError, check_cluster
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.paths import NO_PROCESS, BrokerProcess, CorruptNodeError
from headwater.logtier.metadata.store import (
    Create,
    Delete,
    MetadataStore,
    MetadataStoreError,
    NodeExistsError,
    NoNodeError,
    Operation,
    SessionExpiredError,
    SessionState,
    StoredNode,
    StoreUnavailableError,
)
from headwater.logtier.metadata.stored_levels import check_stored_levels
from headwater.logtier.protocol.features import (
    UnsupportedFeaturesError,
    registered_ranges,
)

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
"""Delay before another attempt to begin a session, or to register."""


class BrokerIdInUseError(Exception):
    """Another broker is registered with this broker's id."""


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """What a broker registers."""

    host: str
    port: int
    rack: str | None = None
    endpoints: Sequence[Endpoint] = ()


class BrokerRegistrar:
    """Registers this broker, and again in each new session.

    Invariant: the broker epoch, the czxid of the registration's node, grows with each registration. A registration of
    another process is replaced only if that process has ended: this one holds the lock of one of its log folders.
    """

    def __init__(
        self,
        store: MetadataStore,
        follower: MetadataFollower,
        broker_id: int,
        addresses: BrokerAddresses,
        session_timeout_s: float,
        process: BrokerProcess = NO_PROCESS,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        """Create the registrar.

        Args:
            session_timeout_s: A registration of an earlier process with this id is gone after this time.
            process: This process; its previous epoch is that of the clean stop before.
            on_failure: Called with the reason when another broker has taken over the id, or the store is that of
                another cluster: this broker must stop.
        """
        self._store = store
        self._follower = follower
        self._broker_id = broker_id
        self._addresses = addresses
        self._session_timeout_s = session_timeout_s
        self._process = process
        self._on_failure = on_failure
        self._path = paths.broker_path(broker_id)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._cancels: list[Callable[[], None]] = []
        self._failures = FailureLog(log)
        #: The session of the last registration.
        self.session_id = 0
        #: The broker epoch of the last registration; -1 before the first.
        self.epoch = -1
        #: Called after each registration.
        self.on_registered: Callable[[], None] = lambda: None
        #: Called when the store has no cluster.
        self.on_cluster_gone: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Register, and wait until this broker's image has the registration.

        Raises:
            BrokerIdInUseError: Another broker has the id, and is still there after a session's time.
            UnsupportedFeaturesError: The levels of the cluster are not those of this release.
            MetadataStoreError: The store is not available.
        """
        self._cancels = [
            self._store.on_session(lambda _: self._changed.set()),
            self._store.watch(self._path, lambda _: self._changed.set()),
            self._store.watch(paths.CLUSTER_ID, lambda _: self._changed.set()),
        ]
        await self._register()
        self._task = asyncio.create_task(self._run())
        await self._follower.until(
            lambda image: (known := image.brokers.get(self._broker_id)) is not None and known.epoch == self.epoch
        )

    async def update_folders(self, online: tuple[str, ...], full: tuple[str, ...]) -> None:
        """Change the log folders of the registration, and of later ones; the broker epoch stays.

        Raises:
            MetadataStoreError: The store is not available.
        """
        self._process = self._process.with_folders(online, full)
        node = await self._registered()
        if node is not None and node.ephemeral_owner == self._store.session_id:
            await self._store.set(self._path, self._data(), node.version)

    def _data(self) -> bytes:
        addresses = self._addresses
        return paths.encode_broker(addresses.host, addresses.port, addresses.rack, addresses.endpoints, self._process)

    async def stop(self) -> None:
        """Register no more, and remove the registration; without the store, the end of the session removes it."""
        for cancel in self._cancels:
            cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        try:
            node = await self._registered()
            if node is not None and node.ephemeral_owner == self._store.session_id:
                await self._store.delete(self._path)
        except MetadataStoreError as error:
            log.info("the registration of broker %d is not removed: %s", self._broker_id, error)

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self._is_settled():
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _is_settled(self) -> bool:
        """Register again if necessary; return whether the broker is registered, or waits for an event."""
        store = self._store
        try:
            if store.state is SessionState.LOST:
                log.warning("the session with the metadata store is over: broker %d registers again", self._broker_id)
                await store.start()
            elif store.state is SessionState.SUSPENDED:
                return True
            await check_cluster(store, self._follower.image.cluster_id)
            node = await self._registered()
            if node is not None and node.ephemeral_owner == store.session_id:
                if node.czxid != self.epoch:
                    # Of an attempt that failed after its write: without it, this broker would never lead again.
                    self._note_registration(node.czxid, store.session_id)
                return True
            if node is not None and store.session_id == self.session_id:
                self._replaced()
                return True
            await self._register()
        except (OtherClusterError, UnsupportedFeaturesError) as error:
            self._must_stop(str(error))
        except ClusterGoneError as error:
            self._failures.failed(logging.ERROR, f"broker {self._broker_id} is not registered: {error}")
            self.on_cluster_gone()
            return False
        except (MetadataStoreError, BrokerIdInUseError, ConfigError, CorruptNodeError) as error:
            self._failures.failed(logging.INFO, f"broker {self._broker_id} cannot register at present: {error}")
            return False
        except Exception:
            # A broker that never registers again would be worse than one that tries again.
            log.exception("broker %d failed to register", self._broker_id)
            return False
        self._failures.succeeded()
        return True

    def _replaced(self) -> None:
        """Another process has a copy of a log folder: each would replace the registration of the other for ever."""
        self._must_stop(
            f"another broker has replaced the registration of broker {self._broker_id}: it has a copy of a log folder; "
            "give it folders and a node.id of its own"
        )

    def _must_stop(self, reason: str) -> None:
        log.error("%s", reason)
        if self._on_failure is not None:
            self._on_failure(reason)

    async def _registered(self) -> StoredNode | None:
        try:
            return await self._store.get(self._path)
        except NoNodeError:
            return None

    async def _register(self) -> None:
        deadline_s = asyncio.get_running_loop().time() + 2 * self._session_timeout_s
        while True:
            # Of this session at most: it may end before this task hears of its registration.
            session_id = self._store.session_id
            await check_stored_levels(self._store, registered_ranges(self._process.features))
            epoch = await self._try_to_register(self._data())
            if epoch is not None:
                break
            if asyncio.get_running_loop().time() >= deadline_s:
                raise BrokerIdInUseError(
                    f"another broker is registered with broker.id {self._broker_id}; give each broker an id and log "
                    "folders of its own, no copies"
                )
            await asyncio.sleep(RETRY_S)
        self._note_registration(epoch, session_id)

    def _note_registration(self, epoch: int, session_id: int) -> None:
        self.epoch = epoch
        self.session_id = session_id
        # If it loses no more than its session, it has all records that it had.
        self._process = self._process._replace(previous_epoch=epoch)
        log.info("broker %d is registered, in epoch %d", self._broker_id, epoch)
        self.on_registered()

    async def _try_to_register(self, data: bytes) -> int | None:
        """Return the new broker epoch, None while another registration stands in the way."""
        try:
            return await self._store.create(self._path, data, ephemeral=True)
        except NodeExistsError:
            node = await self._registered()
        if node is None:
            return None
        if node.ephemeral_owner == self._store.session_id:
            return node.czxid  # of an attempt without an answer
        if not self._has_ended(node):
            return None  # a process whose session the store has not ended yet, or another broker
        log.info("broker %d replaces its registration of the process before", self._broker_id)
        return await self._replace(node, data)

    async def _replace(self, node: StoredNode, data: bytes) -> int | None:
        """Replace the registration of a process that has ended, which was controller perhaps.

        Return the epoch. None: the outcome is unknown, or the store has ended the session of that process meanwhile.
        """
        operations: list[Operation] = [Delete(self._path, node.version), Create(self._path, data, ephemeral=True)]
        (controller,) = await self._store.get_many([paths.CONTROLLER])
        if controller is not None and controller.ephemeral_owner == node.ephemeral_owner:
            # Both nodes go with the session: if another controller has been elected, the registration is gone, too.
            operations.insert(0, Delete(paths.CONTROLLER, controller.version))
        try:
            return (await self._store.multi(operations)).zxid
        except SessionExpiredError:
            raise
        except (NoNodeError, NodeExistsError, StoreUnavailableError):
            return None

    def _has_ended(self, node: StoredNode) -> bool:
        """Whether the registered process has ended."""
        try:
            registered = paths.decode_broker(self._path, node.data, epoch=node.czxid)[-1]
        except CorruptNodeError:
            return False
        return self._process.replaces(registered)
