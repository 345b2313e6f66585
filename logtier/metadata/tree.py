"""The nodes of a metadata store in memory, and the rules of its operations: pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headwater.logtier.metadata.store import (
    ANY_VERSION,
    MAX_NODE_BYTES,
    BadVersionError,
    Check,
    Create,
    Delete,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    WatchEvent,
    WatchEventType,
    check_path,
    parent_path,
)


@dataclass(frozen=True, slots=True)
class Node:
    """The data of one path."""

    data: bytes
    version: int = 0
    ephemeral: bool = False


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
        return sorted((path, node) for path, node in self._nodes.items() if path != "/" and not node.ephemeral)

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

    def prepare(self, operations: Sequence[Operation]) -> "Prepared":
        """Check operations against the nodes, each after the effects of the previous ones; nothing is changed.

        Raises:
            MetadataStoreError: The error of the first operation that fails.
        """
        return _Preparation(self._nodes, self._children).run(operations)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The result of a `multi`: the resulting version of each operation, the changes of nodes, and the watch events."""

    versions: list[int]
    changes: dict[str, Node | None]
    events: list[WatchEvent]


class _Preparation:
    def __init__(self, nodes: Mapping[str, Node], children: Mapping[str, set[str]]) -> None:
        self._nodes = nodes
        self._children = children
        self._changes: dict[str, Node | None] = {}
        self._child_counts: dict[str, int] = {}
        self._events: list[WatchEvent] = []

    def run(self, operations: Sequence[Operation]) -> Prepared:
        versions = [self._one(operation) for operation in operations]
        # A node created and deleted in the same `multi` causes no change.
        changes = {path: node for path, node in self._changes.items() if node is not None or path in self._nodes}
        return Prepared(versions, changes, self._events)

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
        _check_size(path, operation.data)
        self._changes[path] = Node(operation.data, node.version + 1, node.ephemeral)
        self._events.append(WatchEvent(WatchEventType.CHANGED, path))
        return node.version + 1

    def _create(self, operation: Create) -> int:
        path = operation.path
        if self._get(path) is not None:
            raise NodeExistsError(path, "the node exists already")
        parent = self._get(parent_path(path))
        if parent is None:
            raise NoNodeError(path, f"its parent {parent_path(path)} does not exist")
        if parent.ephemeral:
            raise NoChildrenForEphemeralsError(path, f"its parent {parent_path(path)} is ephemeral")
        _check_size(path, operation.data)
        self._changes[path] = Node(operation.data, 0, operation.ephemeral)
        self._count_child(path, 1)
        self._events.append(WatchEvent(WatchEventType.CREATED, path))
        return 0

    def _delete(self, path: str) -> int:
        if path == "/" or self._child_count(path):
            raise NotEmptyError(path, "the node has children")
        self._changes[path] = None
        self._count_child(path, -1)
        self._events.append(WatchEvent(WatchEventType.DELETED, path))
        return -1

    def _get(self, path: str) -> Node | None:
        return self._changes[path] if path in self._changes else self._nodes.get(path)

    def _child_count(self, path: str) -> int:
        known = self._child_counts.get(path)
        return len(self._children.get(path, ())) if known is None else known

    def _count_child(self, path: str, difference: int) -> None:
        parent = parent_path(path)
        self._child_counts[parent] = self._child_count(parent) + difference


def _check_size(path: str, data: bytes) -> None:
    if len(data) > MAX_NODE_BYTES:
        raise ValueError(f"the metadata node {path} would hold {len(data)} bytes: {MAX_NODE_BYTES} is the limit")
