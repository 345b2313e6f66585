"""The list of changes of a store that several brokers share: in nodes, one for each change.

| path | data |
|---|---|
| `/changes` | the number of the next change |
| `/changes/<n>` | `[[path, data], [deleted path], ...]`, data as Latin-1 text to keep the JSON legible |

A change is one transaction of the store: its operations, its node, and the new number of the next one. A broker reads
the next node when the store reports it; one that finds the node trimmed away reads all nodes instead.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from headwater.logtier.metadata.change_list import (
    CHANGE_BYTES_MAX,
    CHANGES_MAX,
    ChangesTrimmedError,
    FindPaths,
    ListMovedBackError,
    ListMovedError,
    MetadataChange,
    changed_nodes,
)
from headwater.logtier.metadata.paths import CorruptNodeError
from headwater.logtier.metadata.store import (
    ANY_VERSION,
    Create,
    Delete,
    MetadataStore,
    MetadataStoreError,
    MultiResult,
    NodeExistsError,
    NoNodeError,
    Operation,
    SessionCallback,
    SessionState,
    SetData,
    StoredNode,
    WatchCallback,
)

log = logging.getLogger(__name__)

CHANGES: Final = "/changes"

TRIM_EVERY: Final = 100
"""Changes between two deletions of old ones: a deletion in each transaction would double its size."""

TRIM_BYTES: Final = 4 << 20
"""Bytes of changes after which old ones are deleted earlier: a broker that comes back to 100,000 partitions causes 40
MB of changes, which ZooKeeper keeps in memory."""

DAMAGED_RETRY_S: Final = 5.0
"""Wait before the number of the next change is read again that cannot be read: only the next change mends it, or an
administrator."""

READ_AHEAD: Final = 50
"""Changes that a broker reads at once when it is behind."""


class SharedMetadataStore:
    """A store with a list of changes in its nodes; every method of the store itself is passed on.

    Invariant: `/changes/<n>` exists exactly for the last changes, without gaps, and `/changes` holds the number of the
    next one. Only the controller appends, and every broker follows.

    Old changes are deleted from time to time: the last CHANGES_MAX stay, but no more than CHANGE_BYTES_MAX of them.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._end = 0
        self._is_end_damaged = False
        #: Bytes of changes in the list, by their numbers, as far as this broker has written or read them.
        self._sizes: dict[int, int] = {}
        self._appended_bytes = 0

    # -- the list

    @property
    def end_offset(self) -> int:
        """The number of the next change, as far as this broker knows."""
        return self._end

    async def append(self, operations: Sequence[Operation]) -> int:
        """Execute all operations or none, as the next change of the list; return its number.

        Raises:
            ListMovedError: This broker does not know the end of the list: another controller has written to it.
            MetadataStoreError: As of `multi`.
        """
        number = self._end
        change = _encode(changed_nodes(operations))
        try:
            await self._store.multi(
                [
                    *operations,
                    Create(_change_path(number), change),
                    SetData(CHANGES, b"%d" % (number + 1)),
                ]
            )
        except NodeExistsError as error:
            if error.path == _change_path(number):
                raise ListMovedError(error.path, "another controller has written this change") from error
            raise
        self._end = max(self._end, number + 1)
        self._sizes[number] = len(change)
        self._appended_bytes += len(change)
        if number % TRIM_EVERY == 0 or self._appended_bytes > TRIM_BYTES:
            self._appended_bytes = 0
            await self._trim()
        return number

    async def _trim(self) -> None:
        """Delete changes that no broker needs: those before the last CHANGES_MAX, or before CHANGE_BYTES_MAX."""
        try:
            # A node that is no change is somebody else's: the change above is stored, and must not fail because of it.
            numbers = sorted(int(name) for name in await self._store.children(CHANGES) if name.isdecimal())
            kept = await self._kept(numbers)
            self._sizes = {number: size for number, size in self._sizes.items() if number >= kept}
            old = [number for number in numbers if number < kept]
            for start in range(0, len(old), TRIM_EVERY):
                await self._store.multi([Delete(_change_path(each)) for each in old[start : start + TRIM_EVERY]])
        except MetadataStoreError as error:
            log.debug("old changes are not deleted yet: %s", error)

    async def _kept(self, numbers: Sequence[int]) -> int:
        """Return the first change that stays in the list; the newest does, whatever its size."""
        kept, bytes_left = self._end, CHANGE_BYTES_MAX
        newest = list(reversed(numbers[-CHANGES_MAX:]))
        for start in range(0, len(newest), READ_AHEAD):
            batch = newest[start : start + READ_AHEAD]
            await self._read_sizes([number for number in batch if number not in self._sizes])
            for number in batch:
                bytes_left -= self._sizes.get(number, 0)
                if bytes_left < 0 and kept < self._end:
                    return kept
                kept = number
        return kept

    async def _read_sizes(self, numbers: Sequence[int]) -> None:
        """Learn the sizes of changes that an earlier controller has written."""
        nodes = await self._store.get_many([_change_path(number) for number in numbers])
        for number, node in zip(numbers, nodes, strict=True):
            if node is not None:
                self._sizes[number] = len(node.data)

    async def snapshot(self, find_paths: FindPaths) -> tuple[int, dict[str, bytes]]:
        """Return nodes as they were after a change, and the number of the following change.

        The nodes are read one after the other while the controller writes. What was written meanwhile is in the list: a
        change sets the nodes that were read before it, and none that was read after it, whose mzxid tells.
        """
        while True:
            number = await self._stored_end()
            paths = await find_paths()
            read = dict(zip(paths, await self._store.get_many(paths), strict=True))
            nodes = {path: node.data for path, node in read.items() if node is not None}
            try:
                end = await self._overlay(number, await self._stored_end(), read, nodes)
            except ChangesTrimmedError:
                continue
            self._end = max(self._end, end)
            return end, nodes

    async def _overlay(self, number: int, end: int, read: dict[str, StoredNode | None], nodes: dict[str, bytes]) -> int:
        """Apply the changes from `number` to `end` to the nodes that were read before them."""
        for stored, change in await self._read_changes(number, end):
            for path, data in change.nodes:
                before = read.get(path)
                if before is not None and before.mzxid >= stored.czxid:
                    continue
                if data is None:
                    nodes.pop(path, None)
                else:
                    nodes[path] = data
        return end

    async def changes_from(self, number: int) -> Sequence[MetadataChange]:
        """Wait until there is a change of this number; return it and some of the following ones.

        Raises:
            ChangesTrimmedError: The change is no longer in the list, or one of them is damaged.
            ListMovedBackError: The list ends before this number: others would number other changes like applied ones.
        """
        path = _change_path(number)
        happened = asyncio.Event()
        forget = self._store.watch(path, lambda _: happened.set())
        try:
            while True:
                happened.clear()
                if await self._store.exists(path):
                    break
                end = await self._readable_end()
                if end is None:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(happened.wait(), DAMAGED_RETRY_S)
                    continue
                if end > number and not await self._store.exists(path):
                    raise ChangesTrimmedError(f"{path} is not in the list any more")
                if end < number:
                    await self._check_not_moved_back(number)
                await happened.wait()
        finally:
            forget()
        end = await self._readable_end()
        end = number + 1 if end is None else min(end, number + READ_AHEAD)
        changes = [change for _, change in await self._read_changes(number, end)]
        self._end = max(self._end, end)
        return changes

    async def _read_changes(self, number: int, end: int) -> list[tuple[StoredNode, MetadataChange]]:
        found = []
        numbers = range(number, end)
        nodes = await self._store.get_many([_change_path(each) for each in numbers])
        for each, node in zip(numbers, nodes, strict=True):
            if node is None:
                raise ChangesTrimmedError(f"{_change_path(each)} is not in the list any more")
            try:
                found.append((node, MetadataChange(each, _decode(_change_path(each), node.data))))
            except CorruptNodeError as error:
                # The list repeats what the nodes have.
                log.error("%s; it is passed over, and the nodes themselves are read: delete nothing", error)
                raise ChangesTrimmedError(str(error)) from error
        return found

    async def _readable_end(self) -> int | None:
        """Return the number of the next change; None if its node is damaged, which is logged once."""
        try:
            end = await self._stored_end()
        except CorruptNodeError as error:
            if not self._is_end_damaged:
                names = await self._store.children(CHANGES)
                end = max([int(each) + 1 for each in names if each.isdecimal()], default=self._end)
                log.error("%s; set it to %d, or wait for the next change, which sets it", error, end)
            self._is_end_damaged = True
            return None
        self._is_end_damaged = False
        return end

    async def _check_not_moved_back(self, number: int) -> None:
        """Check that the list does not end before a number, which a server of the store may say that is behind."""
        await self._store.sync()
        if not await self._store.exists(CHANGES):
            raise NoNodeError(CHANGES, "the list of changes is gone, which must be restored with all other nodes")
        end = await self._readable_end()
        if end is not None and end < number:
            raise ListMovedBackError(
                CHANGES,
                f"{end} is the next change, and {number - 1} is applied: ZooKeeper was restored from an old copy. Stop "
                "all brokers, and restore a newer copy of its data (docs/how-to/cluster.md)",
            )

    async def _stored_end(self) -> int:
        try:
            node = await self._store.get(CHANGES)
        except NoNodeError:
            return 0
        try:
            return int(node.data)
        except ValueError:
            raise CorruptNodeError(CHANGES, node.data) from None

    # -- the store

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        return self._store.state

    @property
    def session_id(self) -> int:
        """The id of the session."""
        return self._store.session_id

    async def start(self) -> None:
        """Begin a session. The list begins with the cluster: a store whose nodes are gone stays empty."""
        await self._store.start()

    async def close(self) -> None:
        """End the session."""
        await self._store.close()

    def on_session(self, callback: SessionCallback) -> Callable[[], None]:
        """Call `callback` with each new state of the session."""
        return self._store.on_session(callback)

    async def sync(self) -> None:
        """Wait until reads show all confirmed changes."""
        await self._store.sync()

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> int:
        """Create a node outside of the list; return its czxid."""
        return await self._store.create(path, data, ephemeral=ephemeral)

    async def get(self, path: str) -> StoredNode:
        """Return a node."""
        return await self._store.get(path)

    async def get_many(self, paths: Sequence[str]) -> list[StoredNode | None]:
        """Return the nodes of all paths."""
        return await self._store.get_many(paths)

    async def set(self, path: str, data: bytes, expected_version: int = ANY_VERSION) -> int:
        """Replace a node's data outside of the list."""
        return await self._store.set(path, data, expected_version)

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Delete a node outside of the list."""
        await self._store.delete(path, expected_version)

    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children."""
        return await self._store.children(path)

    async def exists(self, path: str) -> bool:
        """Whether the node exists."""
        return await self._store.exists(path)

    async def multi(self, operations: Sequence[Operation]) -> MultiResult:
        """Execute all operations or none, outside of the list."""
        return await self._store.multi(operations)

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        """Call `callback` after changes of a node."""
        return self._store.watch(path, callback)


def _change_path(number: int) -> str:
    return f"{CHANGES}/{number}"


def _encode(nodes: Sequence[tuple[str, bytes | None]]) -> bytes:
    return orjson.dumps([(path,) if data is None else (path, data.decode("latin-1")) for path, data in nodes])


def _decode(path: str, data: bytes) -> list[tuple[str, bytes | None]]:
    try:
        entries: list[list[Any]] = orjson.loads(data)
        return [(str(each[0]), each[1].encode("latin-1") if len(each) > 1 else None) for each in entries]
    except (orjson.JSONDecodeError, AttributeError, IndexError, KeyError, TypeError, UnicodeEncodeError):
        raise CorruptNodeError(path, data) from None
