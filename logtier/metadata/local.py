"""The metadata store of a single-node cluster: a folder beside the logs, for one process at a time."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Final

from headwater.logtier.metadata.change_list import FindPaths, MetadataChange, RecentChanges, changed_nodes
from headwater.logtier.metadata.journal import CorruptJournalError, Journal, SyncFailedError
from headwater.logtier.metadata.journal_entries import (
    JOURNAL_FILE,
    UNREADABLE_ENTRIES,
    ReplayedNodes,
    encode_changes,
    encode_end,
)
from headwater.logtier.metadata.session_callbacks import SessionCallbacks
from headwater.logtier.metadata.store import (
    ANY_VERSION,
    Create,
    Delete,
    MultiResult,
    NoNodeError,
    Operation,
    SessionCallback,
    SessionExpiredError,
    SessionState,
    SetData,
    StoredNode,
    StoreUnavailableError,
    WatchCallback,
    check_path,
)
from headwater.logtier.metadata.tree import Node, NodeTree, Prepared
from headwater.logtier.runtime.disk import Disk, Lock
from headwater.logtier.runtime.durable_folder import make_durable_folder

log = logging.getLogger(__name__)

_STARTS_SHIFT: Final = 32
_NODES_PER_ENTRY: Final = 1000
_COMPACT_FACTOR: Final = 2
_COMPACT_BYTES_MIN: Final = 1 << 20
"""Smaller journals are read in milliseconds, and compaction would cost more than it saves."""


class LocalMetadataStore:
    """A tree of nodes in memory; every change is first written to a journal, with a checksum and a sync.

    Invariant: memory equals the replay of the journal, plus the ephemeral nodes, which end with the process. A `multi`
    is one entry of the journal, and so atomic.

    A zxid is, as ZooKeeper's, a pair of 32 bits each: the number of starts that wrote, and the transactions since the
    start. The first transaction of a start is therefore written even if it only concerns ephemeral nodes: without it,
    the next start would use the same zxids.

    Files: `<directory>/journal` (see `journal` and `journal_entries`), `<directory>/.lock`, accessible to their owner
    only.
    """

    def __init__(self, directory: str, disk: Disk, on_failure: Callable[[str], None] | None = None) -> None:
        """`on_failure` is called once, when the disk has failed and metadata can no longer be written."""
        self._directory = directory
        self._on_failure = on_failure
        self._disk = disk
        self._journal = Journal(disk, os.path.join(directory, JOURNAL_FILE))
        self._tree = NodeTree()
        self._lock: Lock | None = None
        self._writing = asyncio.Lock()
        self._commits: set[asyncio.Task[tuple[MultiResult, int]]] = set()
        self._recent = RecentChanges()
        self._watches: list[tuple[str, WatchCallback]] = []
        self._session_callbacks = SessionCallbacks()
        self._state = SessionState.LOST
        self._failure: str | None = None
        self._compact_above_bytes = _COMPACT_BYTES_MIN
        self._end_offset = 0
        self._zxid = 0
        self._written_zxid = 0

    @property
    def end_offset(self) -> int:
        """The offset of the next durable change; changes of ephemeral nodes have none."""
        return self._end_offset

    @property
    def state(self) -> SessionState:
        """CONNECTED from `start` to `close`: there is no connection to lose."""
        return self._state

    @property
    def session_id(self) -> int:
        """The number of starts that wrote, including this one."""
        return self._zxid >> _STARTS_SHIFT if self._state is SessionState.CONNECTED else 0

    async def start(self) -> None:
        """Read the journal; StoreUnavailableError, with one line, if the folder is not available or damaged."""
        self._tree = NodeTree()
        self._failure = None
        self._end_offset = self._zxid = 0
        try:
            make_durable_folder(self._disk, self._directory)
            self._hide()
            self._lock = self._disk.lock(os.path.join(self._directory, ".lock"))
            replayed = ReplayedNodes()
            for payload in await self._journal.open():
                replayed.apply(payload)
            self._tree, self._end_offset, self._zxid = replayed.tree, replayed.end_offset, replayed.zxid
            self._recent.restart(self._end_offset)
            self._written_zxid = self._zxid
            self._zxid = ((self._zxid >> _STARTS_SHIFT) + 1) << _STARTS_SHIFT
            await self._compact_if_grown()
        except BlockingIOError:
            raise StoreUnavailableError(self._directory, "another broker uses this folder; stop that broker") from None
        except CorruptJournalError as error:
            self._release()
            raise StoreUnavailableError(self._directory, str(error)) from None
        except (KeyError, TypeError, ValueError):
            self._release()
            raise StoreUnavailableError(self._directory, UNREADABLE_ENTRIES) from None
        except OSError as error:
            self._release()
            raise StoreUnavailableError(
                self._directory, f"metadata cannot be stored in this folder: {error.strerror or error}"
            ) from None
        self._enter(SessionState.CONNECTED)

    def _hide(self) -> None:
        """Restrict access to the folder: the journal contains credentials and secrets."""
        try:
            self._disk.hide(self._directory)
        except PermissionError:
            log.warning(
                "%s belongs to another user: its permissions are not changed. It contains salted passwords; make it "
                "readable only for the broker's user.",
                self._directory,
            )

    async def close(self) -> None:
        """Wait for running writes, and release the folder."""
        async with self._writing:
            self._release()
            if self._state is not SessionState.LOST:
                self._enter(SessionState.LOST)

    def on_session(self, callback: SessionCallback) -> Callable[[], None]:
        """Call `callback` with each new state of the session, until the returned function is called."""
        return self._session_callbacks.add(callback)

    async def sync(self) -> None:
        """Wait for the changes that were called for before; reads show them anyway."""
        await self._written()

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> int:
        """Create a node; return its czxid."""
        return (await self.multi([Create(path, data, ephemeral)])).zxid

    async def get(self, path: str) -> StoredNode:
        """Return a node."""
        await self._written()
        return self._tree.stored(path)

    async def get_many(self, paths: Sequence[str]) -> list[StoredNode | None]:
        """Return the nodes of all paths, None where there is none."""
        await self._written()
        found: list[StoredNode | None] = []
        for path in paths:
            try:
                found.append(self._tree.stored(path))
            except NoNodeError:
                found.append(None)
        return found

    async def set(self, path: str, data: bytes, expected_version: int = ANY_VERSION) -> int:
        """Replace a node's data; return its new version."""
        return (await self.multi([SetData(path, data, expected_version)])).versions[0]

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Delete a node."""
        await self.multi([Delete(path, expected_version)])

    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children, sorted."""
        await self._written()
        return self._tree.children(path)

    async def exists(self, path: str) -> bool:
        """Whether the node exists."""
        await self._written()
        return self._tree.exists(path)

    async def _written(self) -> None:
        """Wait for the changes that were called for before: a read shows them. SessionExpiredError."""
        if self._state is SessionState.LOST:
            raise SessionExpiredError(self._directory, "the store is closed")
        if self._commits:
            await asyncio.wait(set(self._commits))

    async def multi(self, operations: Sequence[Operation]) -> MultiResult:
        """Execute all operations or none.

        Cancelling the caller does not interrupt a commit.
        """
        return (await self._shielded(operations))[0]

    async def append(self, operations: Sequence[Operation]) -> int:
        """Execute all operations or none, as the next change of the list; return its number. Not to be interrupted."""
        return (await self._shielded(operations))[1]

    async def _shielded(self, operations: Sequence[Operation]) -> tuple[MultiResult, int]:
        commit = asyncio.ensure_future(self._commit(operations))
        self._commits.add(commit)
        commit.add_done_callback(self._commits.discard)
        return await asyncio.shield(commit)

    async def snapshot(self, find_paths: FindPaths) -> tuple[int, dict[str, bytes]]:
        """Return nodes and the number of the next change; paths that were found before a change are found again."""
        while True:
            number = self._end_offset
            paths = await find_paths()
            nodes = await self.get_many(paths)
            if number == self._end_offset:
                return number, {path: node.data for path, node in zip(paths, nodes, strict=True) if node is not None}

    async def changes_from(self, number: int) -> Sequence[MetadataChange]:
        """Wait for changes that the journal has; the ephemeral nodes of such a change are among its nodes."""
        return await self._recent.wait_from(number)

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        """Call `callback` after each change of a node or of its set of children."""
        check_path(path)
        watch = (path, callback)
        self._watches.append(watch)

        def cancel() -> None:
            if watch in self._watches:
                self._watches.remove(watch)

        return cancel

    async def _commit(self, operations: Sequence[Operation]) -> tuple[MultiResult, int]:
        """Return the result, and the number of the change."""
        async with self._writing:
            if self._state is SessionState.LOST:
                raise SessionExpiredError(self._directory, "the store is closed")
            if self._failure is not None:
                raise StoreUnavailableError(self._directory, self._failure)
            zxid = self._zxid + 1
            prepared = self._tree.prepare(operations, zxid, self.session_id)
            persistent = self._persistent(prepared)
            number = self._end_offset
            is_first = self._written_zxid >> _STARTS_SHIFT != zxid >> _STARTS_SHIFT
            # An append that fails may be written all the same: its zxid is not used again.
            self._zxid = zxid
            if persistent or is_first:
                await self._write(encode_changes(zxid, persistent))
                self._written_zxid = zxid
                self._end_offset += bool(persistent)
            self._tree.load(prepared.changes.items())
            self._notify(prepared.touched)
            if persistent:
                self._recent.add(changed_nodes(operations))
            await self._compact_if_grown()
        return MultiResult(prepared.versions, zxid), number

    def _persistent(self, prepared: Prepared) -> list[tuple[str, Node | None]]:
        """Return the changes for the journal: without ephemeral nodes, which end with the process."""
        persistent = []
        for path, node in prepared.changes.items():
            known = node if node is not None else self._tree.node(path)
            if not known.owner:
                persistent.append((path, node))
        return persistent

    async def _write(self, payload: bytes) -> None:
        try:
            await self._journal.append(payload)
        except OSError as error:
            reason = error.strerror or str(error)
            if isinstance(error, SyncFailedError):
                self._fail(reason)
            raise StoreUnavailableError(self._directory, f"metadata cannot be written: {reason}") from None

    def _fail(self, reason: str) -> None:
        self._failure = f"the disk failed to sync metadata ({reason}); repair the disk, then restart the broker"
        log.error("%s: %s", self._directory, self._failure)
        if self._on_failure is not None:
            self._on_failure(f"{self._directory}: {self._failure}")

    async def _compact_if_grown(self) -> None:
        """Replace a grown journal by its present nodes, unless they are most of it."""
        if self._journal.size_bytes <= self._compact_above_bytes:
            return
        nodes = self._tree.persistent_nodes()
        payloads = [
            encode_changes(self._written_zxid, nodes[first : first + _NODES_PER_ENTRY])
            for first in range(0, len(nodes), _NODES_PER_ENTRY)
        ]
        live_bytes = sum(map(len, payloads))
        self._compact_above_bytes = max(_COMPACT_BYTES_MIN, _COMPACT_FACTOR * (live_bytes + _COMPACT_BYTES_MIN))
        if self._journal.size_bytes > _COMPACT_FACTOR * live_bytes:
            try:
                await self._journal.rewrite([*payloads, encode_end(self._end_offset, self._written_zxid)])
            except SyncFailedError as error:
                self._fail(error.strerror or str(error))
            except OSError as error:
                # A complete journal is open after any failure. Compaction is retried only after further growth.
                self._compact_above_bytes = self._journal.size_bytes + _COMPACT_BYTES_MIN
                log.warning("%s: the metadata journal cannot be compacted: %s", self._directory, error)

    def _enter(self, state: SessionState) -> None:
        self._state = state
        self._session_callbacks.report(state)

    def _notify(self, touched: Sequence[str]) -> None:
        for path, callback in list(self._watches):
            if path in touched:
                try:
                    callback(path)
                except Exception:
                    log.exception("a watch of %s failed", path)

    def _release(self) -> None:
        self._journal.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
