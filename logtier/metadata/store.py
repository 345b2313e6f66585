"""The interface of cluster metadata stores, modelled on ZooKeeper.

A store is a tree of nodes. A path is `/` or `/a/b`; a node has data, a version that starts at 0 and grows by one with
each `set`, and children. An ephemeral node exists as long as the session that created it and has no children. `multi`
combines several operations: all of them take effect, durably, or none.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

ANY_VERSION: Final = -1
"""As an expected version: matches any version."""

MAX_NODE_BYTES: Final = 1_000_000
"""Maximum size of a node's data: ZooKeeper's default (jute.maxbuffer, 1 MiB, with room for the envelope)."""

MAX_PATH_LENGTH: Final = 1024
"""Longest path; the longest topic name has 249 characters."""


class MetadataStoreError(Exception):
    """The store rejected an operation; no operation of its `multi` took effect."""

    def __init__(self, path: str, message: str = "") -> None:
        super().__init__(f"{path}: {message}" if message else path)
        self.path = path


class NodeExistsError(MetadataStoreError):
    """The node to be created exists."""


class NoNodeError(MetadataStoreError):
    """The node, or the parent of a node to be created, does not exist."""


class BadVersionError(MetadataStoreError):
    """The node does not have the expected version: another client changed it."""


class NotEmptyError(MetadataStoreError):
    """The node to be deleted has children."""


class NoChildrenForEphemeralsError(MetadataStoreError):
    """An ephemeral node cannot have children."""


class StoreUnavailableError(MetadataStoreError):
    """The store failed (disk, connection): it is unknown whether the operation took effect."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node; its parent must exist."""

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
    """Delete a node without children."""

    path: str
    expected_version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Fail the `multi` unless the node has this version, without a change: a fence."""

    path: str
    expected_version: int


Operation = Create | SetData | Delete | Check


class WatchEventType(enum.Enum):
    """The kind of change of a node."""

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

    Invariant: a confirmed change survives a crash of any process, and is visible to every later read through the same
    store. Operations of one session take effect in the order of the calls.
    """

    @property
    def end_offset(self) -> int:
        """The offset of the next durable change: offsets grow by one per change and are never reused."""
        ...

    async def start(self) -> None:
        """Open the session; must be called first."""
        ...

    async def close(self) -> None:
        """End the session and its ephemeral nodes."""
        ...

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Create a node: NodeExistsError, NoNodeError (no parent), NoChildrenForEphemeralsError."""
        ...

    async def get(self, path: str) -> tuple[bytes, int]:
        """Return a node's data and version: NoNodeError."""
        ...

    async def set(self, path: str, data: bytes, expected_version: int = ANY_VERSION) -> int:
        """Replace a node's data if the version is as expected; return its new version. NoNodeError, BadVersionError."""
        ...

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Delete a node: NoNodeError, BadVersionError, NotEmptyError."""
        ...

    async def children(self, path: str) -> list[str]:
        """Return the names (not paths) of a node's children, sorted: NoNodeError."""
        ...

    async def exists(self, path: str) -> bool:
        """Whether the node exists."""
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        """Execute all operations or none; return the resulting version of each node (-1 for a deleted one)."""
        ...

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        """Call `callback` after each change of a node or a descendant, until the returned function is called."""
        ...


def check_path(path: str) -> None:
    """Check a path; ValueError for an invalid one, which is a programming error.

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
    """Return the path of a node's parent.

    >>> parent_path("/brokers/topics"), parent_path("/brokers")
    ('/brokers', '/')
    """
    return path[: path.rindex("/")] or "/"
