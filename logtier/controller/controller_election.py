"""Elections of the controller in a shared metadata store: the node `/controller`, and what the winner keeps in line."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from headwater.logtier.controller.controller import Controller
from headwater.logtier.controller.failure_log import FailureLog
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.cluster_identity import ClusterGoneError, OtherClusterError, check_cluster
from headwater.logtier.metadata.store import MetadataStore, MetadataStoreError, NoNodeError, SessionState
from headwater.logtier.protocol.errors import KafkaError

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
"""Delay after a failure of the store before the broker looks again whether there is a controller."""

DAMAGED_RETRY_S: Final = 5.0
"""Delay after a damaged node, which only an administrator mends."""


class ControllerElection:
    """Elects this broker controller when there is none, and keeps the known brokers in line while it is.

    Invariant: the controller does not act while its session is suspended or over. Other brokers may elect another one
    then; its election fences every write of this one in any case.
    """

    def __init__(self, store: MetadataStore, controller: Controller) -> None:
        self._store = store
        self._controller = controller
        self._failures = FailureLog(log)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._cancels: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Begin to watch the controller's node and the registrations of brokers."""
        self._cancels = [
            self._store.watch(paths.CONTROLLER, self._happened),
            self._store.watch(paths.BROKER_IDS, self._happened),
            self._store.on_session(self._session_changed),
        ]
        self._changed.set()
        self._task = asyncio.create_task(self._run())

    def look_again(self) -> None:
        """Have the controller, if this broker is, look at brokers and partitions again."""
        self._changed.set()

    async def stop(self) -> None:
        """Stand no more; the controller resigns by itself."""
        for cancel in self._cancels:
            cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _happened(self, _: str) -> None:
        self._changed.set()

    def _session_changed(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED and self._controller.is_active:
            log.warning(
                "the session with the metadata store is %s: this broker acts as controller no more", state.value
            )
        if state is not SessionState.CONNECTED:
            self._controller.depose()
        self._changed.set()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._store.state is not SessionState.CONNECTED:
                continue
            try:
                await check_cluster(self._store, self._controller.cluster_id)
                if self._controller.is_active or await self._stand():
                    await self._controller.update_brokers()
                self._failures.succeeded()
            except (ClusterGoneError, OtherClusterError) as error:
                # The registration reports it, or ends the broker.
                log.debug("this broker is not controller: %s", error)
                self._controller.depose()
                await self._rest(RETRY_S)
            except (KafkaError, MetadataStoreError) as error:
                # A lost session or another controller has deposed this one already; the rest is worth another attempt.
                self._failures.failed(logging.INFO, f"this broker cannot act as controller at present: {error}")
                await self._rest(RETRY_S)
            except paths.CorruptNodeError as error:
                self._failures.failed(
                    logging.ERROR, f"this broker cannot act as controller until the node is mended: {error}"
                )
                await self._rest(DAMAGED_RETRY_S)
            except Exception:
                # A controller that elects no leaders would be worse than one that tries again.
                log.exception("this broker failed to act as controller")
                await self._rest(RETRY_S)

    async def _rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._changed.set()

    async def _stand(self) -> bool:
        """Become controller if there is none; return whether this broker is."""
        try:
            node = await self._store.get(paths.CONTROLLER)
        except NoNodeError:
            pass
        else:
            if node.ephemeral_owner != self._store.session_id:
                return False
            # Held by this session, which was suspended, or by an election whose answer was lost.
            with contextlib.suppress(NoNodeError):
                await self._store.delete(paths.CONTROLLER)
        if not await self._controller.elect():
            return False
        log.info("this broker is controller, in epoch %d", self._controller.epoch)
        return True
