"""The list of changes of a metadata store: every broker applies the same changes in the same order.

A change is numbered; the list's end is the number of the next one. It repeats the nodes that the change has written, so
that a broker that follows the list reads nothing else.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from headwater.logtier.metadata.store import (
    Create,
    Delete,
    MetadataStore,
    MetadataStoreError,
    Operation,
    SetData,
    StoreUnavailableError,
)

CHANGES_MAX: Final = 1000
"""Changes in the list. A broker that was away for longer reads all nodes instead."""

CHANGE_BYTES_MAX: Final = 16 << 20
"""Bytes of the changes in the list: a thousand large topics that come and go would fill ten times as much."""

FindPaths = Callable[[], Awaitable[Sequence[str]]]
"""Returns the paths of the nodes that a follower needs, parents before children."""


class MetadataChange(NamedTuple):
    """One change: its number, and the path and new data of each changed node (None for a deleted node)."""

    number: int
    nodes: Sequence[tuple[str, bytes | None]]


class ListMovedError(MetadataStoreError):
    """Another controller has written the next change: this one does not know the end of the list."""


class ChangesTrimmedError(Exception):
    """The list no longer has the change that a follower needs next."""


class ListMovedBackError(StoreUnavailableError):
    """The list ends before a change that was applied: the store was restored from an old copy."""


class OrderedMetadataStore(MetadataStore, Protocol):
    """A metadata store with a list of its changes."""

    @property
    def end_offset(self) -> int:
        """The number of the next change: numbers grow by one with each durable change and are never reused."""
        ...

    async def append(self, operations: Sequence[Operation]) -> int:
        """Execute all operations or none, as the next change of the list; return its number.

        Raises:
            ListMovedError: This broker does not know the newest change.
            MetadataStoreError: As of `multi`.
        """
        ...

    async def snapshot(self, find_paths: FindPaths) -> tuple[int, dict[str, bytes]]:
        """Return nodes as they were after a change, and the number of the following change."""
        ...

    async def changes_from(self, number: int) -> Sequence[MetadataChange]:
        """Wait until there is a change of this number; return it and the following ones.

        Raises:
            ChangesTrimmedError: The change is no longer in the list.
        """
        ...


def changed_nodes(operations: Sequence[Operation]) -> list[tuple[str, bytes | None]]:
    """Return the changes of nodes in the order of the operations: a topic may be deleted and created anew in one."""
    changes: list[tuple[str, bytes | None]] = []
    for operation in operations:
        if isinstance(operation, Create | SetData):
            changes.append((operation.path, operation.data))
        elif isinstance(operation, Delete):
            changes.append((operation.path, None))
    return changes


class RecentChanges:
    """The last changes in memory, for one follower or several; the newest is there whatever its size."""

    def __init__(self, first: int = 0) -> None:
        """`first` is the number of the next change."""
        self._end = first
        self._changes: deque[MetadataChange] = deque()
        self._bytes = 0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def end(self) -> int:
        """The number of the next change."""
        return self._end

    def restart(self, end: int) -> None:
        """Forget all changes before a number."""
        self._changes.clear()
        self._bytes = 0
        self._end = end

    def add(self, nodes: Sequence[tuple[str, bytes | None]]) -> int:
        """Add the next change, and return its number."""
        number = self._end
        self._end = number + 1
        self._changes.append(MetadataChange(number, nodes))
        self._bytes += _size(nodes)
        while len(self._changes) > CHANGES_MAX or (self._bytes > CHANGE_BYTES_MAX and len(self._changes) > 1):
            self._bytes -= _size(self._changes.popleft().nodes)
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        return number

    async def wait_from(self, number: int) -> Sequence[MetadataChange]:
        """As `OrderedMetadataStore.changes_from`."""
        while number >= self._end:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        found = [change for change in self._changes if change.number >= number]
        if not found or found[0].number != number:
            raise ChangesTrimmedError(f"change {number} is not among the last {len(self._changes)}")
        return found


def _size(nodes: Sequence[tuple[str, bytes | None]]) -> int:
    return sum(len(data) for _, data in nodes if data is not None)
