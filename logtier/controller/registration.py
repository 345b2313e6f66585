"""This broker's registration in a shared metadata store, renewed in each session."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headwater.logtier.config import Endpoint
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.store import MetadataStore, MetadataStoreError, NodeExistsError, SessionState

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

    Invariant: the broker epoch, the czxid of the registration's node, grows with each registration.
    """

    def __init__(
        self,
        store: MetadataStore,
        follower: MetadataFollower,
        broker_id: int,
        addresses: BrokerAddresses,
        session_timeout_s: float,
    ) -> None:
        """`session_timeout_s`: a registration of an earlier process with this id is gone after this time."""
        self._store = store
        self._follower = follower
        self._broker_id = broker_id
        self._addresses = addresses
        self._session_timeout_s = session_timeout_s
        self._path = paths.broker_path(broker_id)
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._cancel: Callable[[], None] = lambda: None
        #: The broker epoch of the last registration; -1 before the first.
        self.epoch = -1

    async def start(self) -> None:
        """Register, and wait until this broker's image has the registration.

        Raises:
            BrokerIdInUseError: Another broker has the id, and is still there after a session's time.
            MetadataStoreError: The store is not available.
        """
        self._cancel = self._store.on_session(self._session_changed)
        await self._register()
        await self._follower.until(
            lambda image: (known := image.brokers.get(self._broker_id)) is not None and known.epoch == self.epoch
        )
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Register no more; the end of the session takes the registration away."""
        self._cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._lost.set()

    async def _run(self) -> None:
        while True:
            await self._lost.wait()
            self._lost.clear()
            log.warning("the session with the metadata store is over: broker %d registers again", self._broker_id)
            while self._store.state is SessionState.LOST or not await self._is_registered():
                try:
                    if self._store.state is SessionState.LOST:
                        await self._store.start()
                    await self._register()
                except (MetadataStoreError, BrokerIdInUseError) as error:
                    log.info("broker %d cannot register at present: %s", self._broker_id, error)
                    await asyncio.sleep(RETRY_S)

    async def _is_registered(self) -> bool:
        try:
            node = await self._store.get(self._path)
        except MetadataStoreError:
            return False
        return node.ephemeral_owner == self._store.session_id

    async def _register(self) -> None:
        addresses = self._addresses
        data = paths.encode_broker(addresses.host, addresses.port, addresses.rack, addresses.endpoints)
        deadline_s = asyncio.get_running_loop().time() + 2 * self._session_timeout_s
        while True:
            try:
                self.epoch = await self._store.create(self._path, data, ephemeral=True)
            except NodeExistsError:
                # Of an earlier process of this broker, whose session the store has not ended yet; or of another broker.
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise BrokerIdInUseError(
                        f"another broker is registered with broker.id {self._broker_id}; give each broker an id of its "
                        "own"
                    ) from None
                await asyncio.sleep(RETRY_S)
            else:
                log.info("broker %d is registered, in epoch %d", self._broker_id, self.epoch)
                return
