"""What the ZooKeeper store needs of a session, so that a simulation can provide its own."""

from collections.abc import Callable, Sequence
from typing import Protocol

from headwater.logtier.metadata.level_watches import FireWatch
from headwater.logtier.metadata.store import MultiResult, Operation, SessionState, StoredNode
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings


class LoginRefusedError(Exception):
    """ZooKeeper does not accept the login."""


class StoreSession(Protocol):
    """A session from `begin` to its end, over lost connections. Paths are below `chroot`, which is set once it exists.

    Invariant: each request is sent at most once, in the order of the calls; once a connection is lost or the session
    has ended, all requests without an answer fail, before the store hears of the state. Requests raise the errors of
    MetadataStore. A session that has ended is not used again.

    Only ZooKeeperStore uses it, on the event loop.
    """

    chroot: str
    state: SessionState

    @property
    def id(self) -> int:
        """The id of the session; 0 before the first connection."""

    @property
    def connect_failure(self) -> str:
        """Why the last attempt to connect failed."""

    def begin(self) -> None:
        """Start connecting."""

    async def end(self) -> None:
        """End the session; without an answer of the server it expires there later."""

    async def connected(self) -> None:
        """Wait until the session is connected: SessionExpiredError if it ends, LoginRefusedError."""

    async def established(self) -> None:
        """Wait until the server has accepted the login: SessionExpiredError, LoginRefusedError."""

    async def sync(self, path: str) -> None:
        """Wait until this server has applied all that the leader had committed."""

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False, is_shared: bool = False) -> int:
        """Create a node; return its czxid. A shared one admits everyone, also with zookeeper.set.acl."""

    async def get(self, path: str) -> StoredNode:
        """Return a node."""

    async def set(self, path: str, data: bytes, expected_version: int) -> int:
        """Replace a node's data; return its new version."""

    async def delete(self, path: str, expected_version: int) -> None:
        """Delete a node."""

    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children, sorted."""

    async def exists(self, path: str) -> bool:
        """Whether the node exists."""

    async def multi(self, operations: Sequence[Operation]) -> MultiResult:
        """Execute all operations or none."""

    async def arm(self, path: str, fire: FireWatch) -> None:
        """Set the one-shot watches of a path; one event may fire both."""


MakeSession = Callable[[ZooKeeperSettings, Callable[[SessionState], None]], StoreSession]
