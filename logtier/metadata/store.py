"""The interface of cluster metadata stores, modelled on ZooKeeper.

A store is a tree of nodes. A path is `/` or `/a/b`; a node has data, a version that starts at 0 and grows by one with
each `set`, and children. An ephemeral node exists as long as the session that created it and has no children. `multi`
combines several operations: all of them take effect, durably, or none. Each transaction has a number, its zxid: zxids
grow, and are never reused.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

ANY_VERSION: Final = -1
"""As an expected version: matches any version."""

MAX_NODE_BYTES: Final = 1_000_000
"""Maximum size of a node's data: ZooKeeper's default (jute.maxbuffer, 1 MiB, with room for the envelope)."""

MAX_PATH_LENGTH: Final = 1024
"""Longest path; the longest topic name has 249 characters."""

MULTI_BYTES_MAX: Final = 512 << 10
"""Largest `multi` by `multi_bytes`: half of jute.maxbuffer, which bounds requests and, in a quorum, proposals."""

OPERATION_BYTES: Final = 128
"""Upper bound of the encoded size of an operation without path and data: header, version, flags, ACL, chroot."""


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


class NoAuthError(MetadataStoreError):
    """The node's access control list does not admit this client."""


class StoreUnavailableError(MetadataStoreError):
    """The store failed (disk, connection): it is unknown whether the operation took effect.

    Whoever must know waits for the connection, calls `sync`, and reads: the version of a node that the operation
    changes, or the owner of a node that it creates. After `sync`, the operation can no longer take effect.
    """


class SessionExpiredError(StoreUnavailableError):
    """The session is over: its ephemeral nodes are gone, and only a new `start` makes the store usable again."""


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


class StoredNode(NamedTuple):
    """A node as it was read."""

    data: bytes
    version: int
    czxid: int
    """Zxid of the transaction that created the node."""
    mzxid: int
    """Zxid of the transaction that last set the node's data."""
    ephemeral_owner: int = 0
    """Id of the session whose end deletes the node; 0 for a persistent node."""


class MultiResult(NamedTuple):
    """The outcome of a `multi`."""

    versions: list[int]
    """The resulting version of each operation's node; -1 for a deleted one."""
    zxid: int
    """Zxid of the transaction: the czxid of the nodes that it created."""


class SessionState(enum.Enum):
    """The state of a store's session.

    LOST -> CONNECTED by `start`; CONNECTED -> SUSPENDED when the connection is lost; SUSPENDED -> CONNECTED when it is
    made again in time; CONNECTED or SUSPENDED -> LOST when the session has expired, or by `close`.
    """

    CONNECTED = "connected"
    """The store answers."""
    SUSPENDED = "suspended"
    """The connection is lost; the session, and its ephemeral nodes, may live on or not."""
    LOST = "lost"
    """There is no session: `start` begins one."""


WatchCallback = Callable[[str], None]
SessionCallback = Callable[[SessionState], None]


class MetadataStore(Protocol):
    """A tree of nodes, shared by the brokers of a cluster.

    Invariant: a confirmed change survives a crash of any process, and is visible to every later read through the same
    store. Operations of one session take effect in the order of the calls; when a connection is lost, those without an
    answer take effect or not, each for itself, so a caller awaits an operation before one that depends on it.

    All methods and callbacks belong to one event loop. An operation fails at once with StoreUnavailableError while the
    session is suspended, and with SessionExpiredError while there is none. Callbacks of sessions and watches and
    results of operations arrive in the store's order: no result of a new session comes before LOST was reported.
    """

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        ...

    @property
    def session_id(self) -> int:
        """The id of the session, which owns its ephemeral nodes: never reused; 0 while there is none."""
        ...

    async def start(self) -> None:
        """Begin a session: first, and again after LOST. Watches and callbacks outlast sessions.

        Raises:
            StoreUnavailableError: With one line for the administrator.
        """
        ...

    async def close(self) -> None:
        """End the session and its ephemeral nodes."""
        ...

    def on_session(self, callback: SessionCallback) -> Callable[[], None]:
        """Call `callback` with each new state of the session, until the returned function is called."""
        ...

    async def sync(self) -> None:
        """Wait until reads show all changes that any client has had confirmed before this call."""
        ...

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> int:
        """Create a node; return its czxid. NodeExistsError, NoNodeError (no parent), NoChildrenForEphemeralsError.

        The creation of an ephemeral node has no unknown outcome while the session lasts: after a lost connection the
        owner is read back, and the creation repeated if it did not take effect.
        """
        ...

    async def get(self, path: str) -> StoredNode:
        """Return a node: NoNodeError."""
        ...

    async def get_many(self, paths: Sequence[str]) -> list[StoredNode | None]:
        """Return the nodes of all paths, None where there is none. Reads are concurrent, and not of one moment."""
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

    async def multi(self, operations: Sequence[Operation]) -> MultiResult:
        """Execute all operations or none; the error of the first operation that fails is raised.

        Raises:
            ValueError: A node exceeds MAX_NODE_BYTES or, except in a local store, the `multi` MULTI_BYTES_MAX.
        """
        ...

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        """Call `callback` with the path after changes of a node, until the returned function is called.

        A change is: the node was created, its data set, it was deleted, or a child of it came or went. Several changes
        may cause one call, and a call may come without a change: whoever is called reads. After a lost connection, the
        callback is called at least once when the store is connected again. The node need not exist.
        """
        ...


def multi_bytes(operations: Iterable[Operation]) -> int:
    """Return an upper bound of the encoded size of a `multi`, to be compared with MULTI_BYTES_MAX.

    >>> multi_bytes([Create("/a", b"12345"), Check("/a", 0)])
    265
    """
    return sum(operation_bytes(operation) for operation in operations)


def operation_bytes(operation: Operation) -> int:
    """Return an operation's part of `multi_bytes`.

    >>> operation_bytes(SetData("/a", b"12345"))
    135
    """
    data_bytes = len(operation.data) if isinstance(operation, Create | SetData) else 0
    return OPERATION_BYTES + len(operation.path.encode()) + data_bytes


def split_operations(operations: Iterable[Operation], bytes_max: int) -> Iterator[list[Operation]]:
    """Divide operations, in their order, into groups of at most `bytes_max`; one that is larger is a group of its own.

    >>> [len(group) for group in split_operations([Check("/a", 0)] * 5, 2 * operation_bytes(Check("/a", 0)))]
    [2, 2, 1]
    """
    group: list[Operation] = []
    size = 0
    for operation in operations:
        added = operation_bytes(operation)
        if group and size + added > bytes_max:
            yield group
            group, size = [], 0
        group.append(operation)
        size += added
    if group:
        yield group


def check_node_bytes(path: str, data: bytes) -> None:
    """Check the size of a node's data; ValueError above MAX_NODE_BYTES."""
    if len(data) > MAX_NODE_BYTES:
        raise ValueError(f"the metadata node {path} would hold {len(data)} bytes: {MAX_NODE_BYTES} is the limit")


def check_multi_bytes(operations: Sequence[Operation]) -> None:
    """Check the size of a `multi`; ValueError above MULTI_BYTES_MAX, which is a programming error."""
    size = multi_bytes(operations)
    if size > MULTI_BYTES_MAX:
        raise ValueError(f"a metadata transaction of {size} bytes: {MULTI_BYTES_MAX} is the limit; split it")


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
