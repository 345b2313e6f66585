"""Level-triggered watches on top of one-shot ones, which a client of ZooKeeper arms again after each event."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from headwater.logtier.metadata.store import MetadataStoreError, StoreUnavailableError, WatchCallback, check_path
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
"""Wait before a watch is armed again that failed though the store is connected, such as by a throttled request."""

FireWatch = Callable[[object], None]
"""Reports that a one-shot watch fired; the argument, an event, does not matter."""


class _Watched:
    """The callbacks of one path, and whether a change may have gone unseen since they were last called."""

    def __init__(self, fire: FireWatch) -> None:
        # One object for all times the path is armed: kazoo keeps a set of callables for each path.
        self.fire = fire
        self.callbacks: list[WatchCallback] = []
        self.is_stale = True
        self.is_arming = False


class LevelWatches:
    """The watches of a store.

    Invariant: while the store is connected, the one-shot watches of each path are armed, or being armed; callbacks are
    called after that. So no change is missed: it comes before the armed reads, which precede the call, or fires a
    watch.

    Only stores use it, on the event loop. `arm` sets the one-shot watches of a path: for its creation, data, deletion
    and children; each calls the function it is given, also when the connection is lost.
    """

    def __init__(self, arm: Callable[[str, FireWatch], Awaitable[None]], is_connected: Callable[[], bool]) -> None:
        self._arm = arm
        self._is_connected = is_connected
        self._watched: dict[str, _Watched] = {}
        self._connections = 0
        self._tasks = SpawnedTasks("metadata store")

    def add(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        """Call `callback` after changes of a path, until the returned function is called."""
        check_path(path)
        watched = self._watched.get(path)
        if watched is None:
            watched = self._watched[path] = _Watched(lambda _event: self._fired(path))
        watched.callbacks.append(callback)
        self._fired(path)

        def cancel() -> None:
            if callback in watched.callbacks:
                watched.callbacks.remove(callback)
            if not watched.callbacks and self._watched.get(path) is watched:
                del self._watched[path]

        return cancel

    def connected(self) -> None:
        """Arm all watches: the connection is new, and changes before it have fired none."""
        self._connections += 1
        for path in list(self._watched):
            self._fired(path)

    async def close(self) -> None:
        """Stop arming; the callbacks stay for the next session."""
        await self._tasks.cancel()
        # A task that had not begun did not note its end.
        for watched in self._watched.values():
            watched.is_arming = False

    def _fired(self, path: str) -> None:
        watched = self._watched.get(path)
        if watched is None:
            return
        watched.is_stale = True
        if not watched.is_arming and self._is_connected():
            watched.is_arming = True
            self._tasks.spawn(self._arm_until_fresh(path, watched))

    async def _arm_until_fresh(self, path: str, watched: _Watched) -> None:
        try:
            while watched.is_stale and watched.callbacks:
                watched.is_stale = False
                connections = self._connections
                try:
                    await self._arm(path, watched.fire)
                except StoreUnavailableError:
                    watched.is_stale = True
                    if connections == self._connections:
                        if not self._is_connected():
                            return  # `connected` begins again.
                        await asyncio.sleep(RETRY_S)
                except MetadataStoreError as error:
                    log.error("a watch cannot be set: %s", error)
                    return
                else:
                    _call(path, watched)
        finally:
            watched.is_arming = False


def _call(path: str, watched: _Watched) -> None:
    for callback in list(watched.callbacks):
        if callback in watched.callbacks:  # Another callback may have cancelled it.
            try:
                callback(path)
            except Exception:
                log.exception("a watch of %s failed", path)
