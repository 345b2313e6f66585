"""Where cluster metadata is kept: one interface, shaped like ZooKeeper, for every kind of store.

A store is a tree of nodes. A path is `/` or `/a/b`; a node has data, a version that starts at 0 and grows by one with
each `set`, and children. An ephemeral node lives as long as the session that made it and has no children. Several
operations can be made one with `multi`: all of them happen, durably, or none.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

ANY_VERSION: Final = -1
"""As an expected version: whatever it is."""

MAX_NODE_BYTES: Final = 1_000_000
"""Most data of one node: what ZooKeeper takes by default (jute.maxbuffer, 1 MiB, with room for the envelope)."""

MAX_PATH_LENGTH: Final = 1024
"""Longest path; the longest topic name has 249 characters."""


class MetadataStoreError(Exception):
    """An operation that the store refused; nothing of its `multi` happened."""

    def __init__(self, path: str, message: str = "") -> None:
        super().__init__(f"{path}: {message}" if message else path)
        self.path = path


class NodeExistsError(MetadataStoreError):
    """The node to be created is there already."""


class NoNodeError(MetadataStoreError):
    """The node (or, for a creation, its parent) is not there."""


class BadVersionError(MetadataStoreError):
    """The node's version is not the expected one: somebody else changed it."""


class NotEmptyError(MetadataStoreError):
    """The node to be deleted has children."""


class NoChildrenForEphemeralsError(MetadataStoreError):
    """An ephemeral node cannot have children."""


class StoreUnavailableError(MetadataStoreError):
    """The store failed (disk, connection): whether the operation happened is not known."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; its parent must be there."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a node's data."""

    path: str
    data: bytes
    expected_version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node without children."""

    path: str
    expected_version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but fail the `multi` unless the node has this version: a fence."""

    path: str
    expected_version: int


Operation = Create | SetData | Delete | Check


class WatchEventType(enum.Enum):
    """What happened to a node."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change below a watched path."""

    type: WatchEventType
    path: str


WatchCallback = Callable[[WatchEvent], None]


class MetadataStore(Protocol):
    """A tree of nodes, shared by the brokers of a cluster.

    Invariant: what a method has confirmed survives a kill of any process, and is seen by every later read through the
    same store. Operations of one session take effect in the order in which they were called.
    """

    @property
    def end_offset(self) -> int:
        """The offset of the next durable change: each has one, they grow by one, and none is ever used again."""
        ...

    async def start(self) -> None:
        """Open the session; before that nothing may be called."""
        ...

    async def close(self) -> None:
        """End the session: its ephemeral nodes go."""
        ...

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Make a node: NodeExistsError, NoNodeError (no parent), NoChildrenForEphemeralsError."""
        ...

    async def get(self, path: str) -> tuple[bytes, int]:
        """A node's data and version: NoNodeError."""
        ...

    async def set(self, path: str, data: bytes, expected_version: int = ANY_VERSION) -> int:
        """Replace a node's data, if it has the expected version; its new version. NoNodeError, BadVersionError."""
        ...

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Remove a node: NoNodeError, BadVersionError, NotEmptyError."""
        ...

    async def children(self, path: str) -> list[str]:
        """The names (not paths) of a node's children, sorted: NoNodeError."""
        ...

    async def exists(self, path: str) -> bool:
        """Whether there is such a node."""
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        """Do all of the operations or none of them; the resulting version of each node (-1 where it is deleted)."""
        ...

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        """Call back after each change of a node or of anything below it, until the returned function is called."""
        ...


def check_path(path: str) -> None:
    """ValueError for a path that no store takes: a programmer error.

    >>> check_path("/brokers/topics")
    """
    if path == "/":
        return
    if (
        not path.startswith("/")
        or len(path) > MAX_PATH_LENGTH
        or any(part in ("", ".", "..") for part in path[1:].split("/"))
    ):
        raise ValueError(f"not a path of the metadata store: {path[:200]!r}")


def parent_path(path: str) -> str:
    """The path of a node's parent.

    >>> parent_path("/brokers/topics"), parent_path("/brokers")
    ('/brokers', '/')
    """
    return path[: path.rindex("/")] or "/"
