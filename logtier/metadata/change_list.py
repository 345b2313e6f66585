"""The list of changes of a metadata store: every broker applies the same changes in the same order.

A change is numbered; the list's end is the number of the next one. It repeats the nodes that the change has written, so
that a broker that follows the list reads nothing else.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from headwater.logtier.metadata.store import MetadataStore, Operation


class MetadataChange(NamedTuple):
    """One change: its number, and the path and new data of each changed node (None for a deleted node)."""

    number: int
    nodes: Sequence[tuple[str, bytes | None]]


class OrderedMetadataStore(MetadataStore, Protocol):
    """A metadata store with a list of its changes."""

    @property
    def end_offset(self) -> int:
        """The number of the next change: numbers grow by one with each durable change and are never reused."""
        ...

    async def append(self, operations: Sequence[Operation]) -> int:
        """Execute all operations or none, as the next change of the list; return its number. Errors as of `multi`."""
        ...

    def follow(self, callback: Callable[[MetadataChange], None]) -> None:
        """Call `callback` with every later change, in order."""
        ...
