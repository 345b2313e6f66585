"""The list of changes of a metadata store: every broker applies the same changes in the same order.

A change is numbered; the list's end is the number of the next one. It repeats the nodes that the change has written, so
that a broker that follows the list reads nothing else.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from headwater.logtier.metadata.store import Operation, StoredNode


class MetadataChange(NamedTuple):
    """One change: its number, and the path and new data of each changed node (None for a deleted node)."""

    number: int
    nodes: Sequence[tuple[str, bytes | None]]


class ChangeList(Protocol):
    """A metadata store whose changes can be followed."""

    @property
    def end_offset(self) -> int:
        """The number of the next change."""
        ...

    async def append(self, operations: Sequence[Operation]) -> int:
        """Execute all operations or none, as the next change of the list; return its number. Errors as of `multi`."""
        ...

    def follow(self, callback: Callable[[MetadataChange], None]) -> None:
        """Call `callback` with every later change, in order."""
        ...

    async def get_many(self, paths: Sequence[str]) -> list[StoredNode | None]:
        """Return the nodes of all paths, None where there is none."""
        ...

    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children, sorted: NoNodeError."""
        ...
