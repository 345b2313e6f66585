"""Builds the metadata image of a broker from the store, and follows its changes."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from headwater.logtier.metadata import paths
from headwater.logtier.metadata.change_list import MetadataChange, OrderedMetadataStore
from headwater.logtier.metadata.image import MetadataCache, MetadataImage

log = logging.getLogger(__name__)

#: Single nodes of the image, and parents whose children are nodes of the image.
_NODES: Final = (paths.CLUSTER_ID, paths.UNKNOWN_USERS_KEY, paths.CONTROLLER)
_PARENTS: Final = (
    paths.KNOWN_BROKERS,
    paths.TOPICS,
    paths.TOPIC_CONFIGS,
    paths.BROKER_CONFIGS,
    paths.GROUP_CONFIGS,
    paths.ACLS,
    paths.CLIENT_QUOTAS,
    paths.SCRAM_USERS,
)

FAILED_CHANGES_MAX: Final = 1000
"""Errors of applied changes that are kept for those who ask later: as many commands as may wait at the controller."""


class MetadataFollower:
    """The only caller of `MetadataCache.publish`: the image changes in the order of the store's list, one by one.

    Invariant: `applied` is the number of changes whose subscribers have run, with or without an error. Each change is
    prepared and published by a task of the follower, which outlives whoever wrote the change.
    """

    def __init__(
        self, store: OrderedMetadataStore, cache: MetadataCache, on_failure: Callable[[str], None] | None = None
    ) -> None:
        """`on_failure` is called when a change cannot be read: the broker must stop."""
        self._store = store
        self.cache = cache
        self._on_failure = on_failure
        self._waiting: deque[MetadataChange] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._applied = 0
        self._errors: dict[int, Exception] = {}
        self._awaited: dict[int, list[asyncio.Future[None]]] = {}

    @property
    def image(self) -> MetadataImage:
        """The newest image."""
        return self.cache.image

    @property
    def applied(self) -> int:
        """The number of the next change to be applied."""
        return self._applied

    async def start(self) -> None:
        """Read the store, publish its image, and follow its changes from then on.

        Raises:
            CorruptNodeError: A node has data that this version cannot read.
        """
        self._store.follow(self._arrive)
        self._applied = self._store.end_offset
        found = await self._paths()
        nodes = await self._store.get_many(found)
        image = MetadataImage().apply(
            [(path, None if node is None else node.data) for path, node in zip(found, nodes, strict=True)]
        )
        self.cache.publish(image)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Follow no further changes."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def reached(self, number: int) -> None:
        """Wait until a change is applied.

        Raises:
            Exception: The first error of a subscriber that applied it, such as an OSError of a log to be created.
        """
        if number >= self._applied:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._awaited.setdefault(number, []).append(future)
            await future
        if (error := self._errors.get(number)) is not None:
            raise error

    async def _paths(self) -> list[str]:
        found = list(_NODES)
        for parent in _PARENTS:
            found += [f"{parent}/{name}" for name in await self._store.children(parent)]
        for topic in await self._store.children(paths.TOPICS):
            path = paths.topic_path(topic)
            found += [f"{path}/{chunk}" for chunk in await self._store.children(path)]
        return found

    def _arrive(self, change: MetadataChange) -> None:
        self._waiting.append(change)
        self._arrived.set()

    async def _run(self) -> None:
        while True:
            while self._waiting:
                change = self._waiting.popleft()
                if change.number >= self._applied:  # an earlier one is in the image that was read
                    await self._apply(change)
            self._arrived.clear()
            await self._arrived.wait()

    async def _apply(self, change: MetadataChange) -> None:
        try:
            await self.cache.advance(self.cache.image.apply(change.nodes))
        except paths.CorruptNodeError as error:
            log.error("change %d of the metadata cannot be applied: %s", change.number, error)
            self._note(change.number, error)
            if self._on_failure is not None:
                self._on_failure(str(error))
        except Exception as error:  # noqa: BLE001 (the error of a subscriber belongs to the command that waits)
            self._note(change.number, error)
        self._applied = change.number + 1
        for future in self._awaited.pop(change.number, ()):
            if not future.done():
                future.set_result(None)

    def _note(self, number: int, error: Exception) -> None:
        while len(self._errors) >= FAILED_CHANGES_MAX:
            del self._errors[next(iter(self._errors))]
        self._errors[number] = error
