"""Which cluster a metadata store is of: a broker takes part in the cluster of its log folders, and in no other one."""

from headwater.logtier.metadata.paths import CLUSTER_ID, decode_cluster_id
from headwater.logtier.metadata.store import MetadataStore, MetadataStoreError


class ClusterGoneError(MetadataStoreError):
    """The store lacks what the first broker of a cluster writes: its nodes were deleted, or it is another store."""


class OtherClusterError(MetadataStoreError):
    """The store is that of another cluster."""


async def stored_cluster_id(store: MetadataStore) -> str | None:
    """Return the id of the store's cluster, None without one; CorruptNodeError."""
    (node,) = await store.get_many([CLUSTER_ID])
    if node is None:
        await store.sync()  # a server of a quorum may be behind
        (node,) = await store.get_many([CLUSTER_ID])
    return None if node is None else decode_cluster_id(node.data)


async def check_cluster(store: MetadataStore, cluster_id: str) -> None:
    """Check that the store is still that of a cluster.

    Raises:
        ClusterGoneError: It has no cluster.
        OtherClusterError: It has another one.
        CorruptNodeError: The id cannot be read.
    """
    check_same_cluster(await stored_cluster_id(store), cluster_id)


def check_same_cluster(stored: str | None, cluster_id: str) -> None:
    """Check the id that was read, None without one, as `check_cluster`."""
    if not stored:
        raise ClusterGoneError(
            CLUSTER_ID,
            f"the nodes of cluster {cluster_id} are gone from ZooKeeper. Brokers serve what they have, and elect no "
            "leaders: restore ZooKeeper's data (docs/how-to/cluster.md)",
        )
    if stored != cluster_id:
        raise OtherClusterError(
            CLUSTER_ID,
            f"ZooKeeper has cluster {stored} now, and this broker belongs to cluster {cluster_id}: stop the brokers of "
            f"{stored}, and restore ZooKeeper's data (docs/how-to/cluster.md)",
        )
