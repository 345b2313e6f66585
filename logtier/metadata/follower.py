"""Builds the metadata image of a broker from the store, and follows its changes."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from headwater.logtier.metadata import paths
from headwater.logtier.metadata.change_list import (
    ChangesTrimmedError,
    ListMovedBackError,
    MetadataChange,
    OrderedMetadataStore,
)
from headwater.logtier.metadata.cluster_identity import OtherClusterError, check_same_cluster
from headwater.logtier.metadata.image import MetadataCache, MetadataImage
from headwater.logtier.metadata.store import MetadataStoreError, NoNodeError

log = logging.getLogger(__name__)

#: Single nodes of the image, and parents whose children are nodes of the image.
_NODES: Final = (paths.CLUSTER_ID, paths.UNKNOWN_USERS_KEY, paths.CONTROLLER, paths.FEATURES)
_PARENTS: Final = (
    paths.KNOWN_BROKERS,
    paths.TOPICS,
    paths.TOPIC_CONFIGS,
    paths.BROKER_CONFIGS,
    paths.GROUP_CONFIGS,
    paths.ACLS,
    paths.CLIENT_QUOTAS,
    paths.SCRAM_USERS,
    paths.DELETED_TOPICS,
)

FAILED_CHANGES_MAX: Final = 1000
"""Errors of applied changes that are kept for those who ask later: as many commands as may wait at the controller."""


TOPICS_READ_AT_ONCE: Final = 200
"""Topics whose nodes are asked for before the answers come: 1,000 topics take 2.3 s, one by one 3.2 s."""

RETRY_S: Final = 0.5
"""Wait before the list is read again after the store failed to answer, as during a lost connection."""


class MetadataFollower:
    """The only caller of `MetadataCache.publish`: the image changes in the order of the store's list, one by one.

    Invariant: `applied` is the number of the next change; the subscribers have run for those before, with or without an
    error. Each change is prepared and published by a task of the follower, which outlives whoever wrote the change and
    connections to the store. If the list itself cannot be read, nothing is applied any more, and all who wait are told.
    """

    def __init__(
        self, store: OrderedMetadataStore, cache: MetadataCache, on_failure: Callable[[str], None] | None = None
    ) -> None:
        """`on_failure` is called when a change or the list cannot be read: the broker must stop."""
        self._store = store
        self.cache = cache
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._applied = 0
        self._errors: dict[int, Exception] = {}
        self._awaited: dict[int, list[asyncio.Future[None]]] = {}
        #: Why no further change is applied.
        self._end: Exception | None = None

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

        The image has all changes that were confirmed before, and so those that this broker has applied in an earlier
        run: by what is older, it would delete the log of a partition that was assigned to it again.

        Raises:
            CorruptNodeError: A node has data that this version cannot read.
        """
        await self._store.sync()  # a server of a quorum may be behind
        self._applied, image = await self._read()
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
            Exception: The first error of a subscriber that applied it, such as an OSError of a log to be created; or
                why it cannot be applied.
        """
        if number >= self._applied:
            if self._end is not None:
                raise self._end
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._awaited.setdefault(number, []).append(future)
            await future
        if (error := self._errors.get(number)) is not None:
            raise error

    async def until(self, is_reached: Callable[[MetadataImage], bool]) -> None:
        """Wait until an image fulfils a condition; raises why no further change is applied, if none does before."""
        while not is_reached(self.image):
            try:
                await self.reached(self._applied)
            except Exception:
                if self._end is not None:
                    raise
                # A subscriber failed to apply the change, which is in the image all the same.

    async def _read(self) -> tuple[int, MetadataImage]:
        number, nodes = await self._store.snapshot(self._paths)
        return number, MetadataImage().apply(nodes.items())

    async def _paths(self) -> list[str]:
        found = list(_NODES)
        for parent in _PARENTS:
            found += await self._below(parent)
        topics = await self._below(paths.TOPICS)
        for start in range(0, len(topics), TOPICS_READ_AT_ONCE):
            batch = topics[start : start + TOPICS_READ_AT_ONCE]
            for chunks in await asyncio.gather(*map(self._below, batch)):
                found += chunks
        return found

    async def _below(self, path: str) -> list[str]:
        try:
            return [f"{path}/{name}" for name in await self._store.children(path)]
        except NoNodeError:
            return []  # the topic was deleted meanwhile

    async def _run(self) -> None:
        is_away = False
        while True:
            try:
                await self._follow()
                is_away = False
            except (ListMovedBackError, OtherClusterError, paths.CorruptNodeError) as error:
                # No error of this program: the line says which node is damaged, and a stack adds nothing.
                log.error("changes of the metadata cannot be read from %d on: %s", self._applied, error)
                self._fail(error)
                return
            except MetadataStoreError as error:
                # Nothing is lost: the list is read on from the same change.
                if not is_away:
                    log.warning("changes of the metadata cannot be read at present: %s", error)
                is_away = True
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                log.exception("changes of the metadata cannot be read from %d on", self._applied)
                self._fail(error)
                return

    async def _follow(self) -> None:
        try:
            changes = await self._store.changes_from(self._applied)
        except ChangesTrimmedError:
            log.info("the metadata is read anew: changes from %d are not in the list any more", self._applied)
            await self._read_anew()
            return
        for change in changes:
            await self._apply(change)

    def _fail(self, error: Exception) -> None:
        self._end = error
        awaited, self._awaited = self._awaited, {}
        for futures in awaited.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        if self._on_failure is not None:
            self._on_failure(str(error))

    async def _read_anew(self) -> None:
        await self._store.sync()
        number, image = await self._read()
        if number < self._applied:
            # In a new session the server may be one that is behind: topics would be gone from the image for a while,
            # and coordinators would take them for deleted.
            log.info("the metadata that was read anew is older than the applied one, and is read again")
            await asyncio.sleep(RETRY_S)
            return
        # Nodes that are gone are no change: their topics would be gone from the image, and their leaders with them.
        if image.cluster_id != self.image.cluster_id:
            check_same_cluster(image.cluster_id, self.image.cluster_id)
        try:
            await self.cache.advance(image)
        except Exception:
            log.exception("the metadata was read anew, and a subscriber failed to apply it")
        self._reached(number)

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
        self._reached(change.number + 1)

    def _reached(self, number: int) -> None:
        self._applied = number
        for reached in [each for each in self._awaited if each < number]:
            for future in self._awaited.pop(reached):
                if not future.done():
                    future.set_result(None)

    def _note(self, number: int, error: Exception) -> None:
        if self._errors:
            # The frames of an error hold the images before and after its change; the command has it by now.
            earlier = self._errors[next(reversed(self._errors))]
            earlier.__traceback__ = earlier.__cause__ = earlier.__context__ = None
        while len(self._errors) >= FAILED_CHANGES_MAX:
            del self._errors[next(iter(self._errors))]
        self._errors[number] = error
