"""The nodes of a metadata store in memory, and the rules of its operations: pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headwater.logtier.metadata.store import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    StoredNode,
    check_node_bytes,
    check_path,
    parent_path,
)


@dataclass(frozen=True, slots=True)
class Node:
    """The data of one path; `owner` is the session of an ephemeral node, else 0."""

    data: bytes
    version: int = 0
    czxid: int = 0
    mzxid: int = 0
    owner: int = 0


class NodeTree:
    """All nodes. Invariant: every node's parent exists, is not ephemeral, and lists it as a child."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {"/": Node(b"")}
        self._children: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, path: str) -> Node:
        """Return the node of a path: NoNodeError."""
        check_path(path)
        node = self._nodes.get(path)
        if node is None:
            raise NoNodeError(path, "there is no such node")
        return node

    def stored(self, path: str) -> StoredNode:
        """Return the node of a path as clients read it: NoNodeError."""
        node = self.node(path)
        return StoredNode(node.data, node.version, node.czxid, node.mzxid, node.owner)

    def exists(self, path: str) -> bool:
        """Whether the node exists."""
        check_path(path)
        return path in self._nodes

    def children(self, path: str) -> list[str]:
        """Return the names of a node's children, sorted: NoNodeError."""
        self.node(path)
        return sorted(self._children.get(path, ()))

    def persistent_nodes(self) -> list[tuple[str, Node]]:
        """Return all nodes except the root and ephemeral ones, parents before children."""
        return sorted((path, node) for path, node in self._nodes.items() if path != "/" and not node.owner)

    def ephemeral_paths(self, owner: int) -> list[str]:
        """Return the paths of a session's ephemeral nodes, sorted."""
        return sorted(path for path, node in self._nodes.items() if node.owner == owner)

    def load(self, changes: Iterable[tuple[str, Node | None]]) -> None:
        """Apply changes that were checked before."""
        for path, node in changes:
            if node is None:
                del self._nodes[path]
                self._children[parent_path(path)].discard(path[path.rindex("/") + 1 :])
            else:
                if path not in self._nodes:
                    self._children.setdefault(parent_path(path), set()).add(path[path.rindex("/") + 1 :])
                self._nodes[path] = node

    def prepare(self, operations: Sequence[Operation], zxid: int, session_id: int) -> "Prepared":
        """Check operations against the nodes, each after the effects of the previous ones; nothing is changed.

        The transaction has the number `zxid`; its ephemeral nodes belong to the session.

        Raises:
            MetadataStoreError: The error of the first operation that fails.
        """
        return _Preparation(self._nodes, self._children, zxid, session_id).run(operations)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A `multi` that can take effect.

    Attributes:
        versions: The resulting version of each operation.
        changes: The new node of each changed path, None where a node was deleted.
        touched: The paths whose watches fire, each once, in order: of changed nodes, and of parents whose children came
            or went.
    """

    versions: list[int]
    changes: dict[str, Node | None]
    touched: list[str]


class _Preparation:
    def __init__(self, nodes: Mapping[str, Node], children: Mapping[str, set[str]], zxid: int, session_id: int) -> None:
        self._nodes = nodes
        self._children = children
        self._zxid = zxid
        self._session_id = session_id
        self._changes: dict[str, Node | None] = {}
        self._child_counts: dict[str, int] = {}
        # A dict for its order.
        self._touched: dict[str, None] = {}

    def run(self, operations: Sequence[Operation]) -> Prepared:
        versions = [self._one(operation) for operation in operations]
        # A node created and deleted in the same `multi` causes no change.
        changes = {path: node for path, node in self._changes.items() if node is not None or path in self._nodes}
        return Prepared(versions, changes, list(self._touched))

    def _one(self, operation: Operation) -> int:
        path = operation.path
        check_path(path)
        if isinstance(operation, Create):
            return self._create(operation)
        node = self._get(path)
        if node is None:
            raise NoNodeError(path, "there is no such node")
        expected = operation.expected_version
        if expected not in (ANY_VERSION, node.version):
            raise BadVersionError(path, f"its version is {node.version}, not {expected}")
        if isinstance(operation, Check):
            return node.version
        if isinstance(operation, Delete):
            return self._delete(path)
        check_node_bytes(path, operation.data)
        self._changes[path] = Node(operation.data, node.version + 1, node.czxid, self._zxid, node.owner)
        self._touched[path] = None
        return node.version + 1

    def _create(self, operation: Create) -> int:
        path = operation.path
        if self._get(path) is not None:
            raise NodeExistsError(path, "the node exists already")
        parent = self._get(parent_path(path))
        if parent is None:
            raise NoNodeError(path, f"its parent {parent_path(path)} does not exist")
        if parent.owner:
            raise NoChildrenForEphemeralsError(path, f"its parent {parent_path(path)} is ephemeral")
        check_node_bytes(path, operation.data)
        owner = self._session_id if operation.ephemeral else 0
        self._changes[path] = Node(operation.data, 0, self._zxid, self._zxid, owner)
        self._count_child(path, 1)
        return 0

    def _delete(self, path: str) -> int:
        if path == "/" or self._child_count(path):
            raise NotEmptyError(path, "the node has children")
        self._changes[path] = None
        self._count_child(path, -1)
        return -1

    def _get(self, path: str) -> Node | None:
        return self._changes[path] if path in self._changes else self._nodes.get(path)

    def _child_count(self, path: str) -> int:
        known = self._child_counts.get(path)
        return len(self._children.get(path, ())) if known is None else known

    def _count_child(self, path: str, difference: int) -> None:
        parent = parent_path(path)
        self._child_counts[parent] = self._child_count(parent) + difference
        self._touched[path] = self._touched[parent] = None
