"""Copies nodes into an empty metadata store, and compares the store with them."""

from collections.abc import Sequence

from headwater.logtier.metadata.store import (
    MULTI_BYTES_MAX,
    Create,
    MetadataStore,
    MetadataStoreError,
    split_operations,
)

_RESERVED = "/zookeeper"
"""ZooKeeper's own nodes, which every server has."""


class IncompleteCopyError(MetadataStoreError):
    """The store has other nodes than those that were copied."""


async def copy_nodes(store: MetadataStore, creates: Sequence[Create]) -> None:
    """Create nodes, parents before children, then read the store back.

    Raises:
        IncompleteCopyError: The store has other nodes, or nodes with other data.
        MetadataStoreError: A node exists, or the store does not answer.
    """
    for group in split_operations(creates, MULTI_BYTES_MAX):
        if len(group) == 1:
            # A node alone may be larger than a transaction.
            (create,) = group
            assert isinstance(create, Create)
            await store.create(create.path, create.data)
        else:
            await store.multi(group)
    await store.sync()
    await _check_nodes(store, creates)


async def _check_nodes(store: MetadataStore, creates: Sequence[Create]) -> None:
    expected = {create.path: create.data for create in creates}
    nodes = await store.get_many(list(expected))
    for (path, data), node in zip(expected.items(), nodes, strict=True):
        if node is None or node.data != data or node.ephemeral_owner:
            raise IncompleteCopyError(path, "the copy of this node differs from the original")
    parents = {path.rpartition("/")[0] or "/" for path in expected} | expected.keys()
    for parent in sorted(parents):
        prefix = "" if parent == "/" else parent
        for name in await store.children(parent):
            if (path := f"{prefix}/{name}") not in expected and path != _RESERVED:
                raise IncompleteCopyError(path, "the store has a node that was not copied")
