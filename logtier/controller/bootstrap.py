"""The first nodes of a metadata store, before a broker follows it."""

import logging
import random
from collections.abc import Mapping

from headwater.logtier.metadata import paths
from headwater.logtier.metadata.cluster_identity import ClusterGoneError, stored_cluster_id
from headwater.logtier.metadata.earlier_topics import convert_topic
from headwater.logtier.metadata.scram_nodes import encode_unknown_users_key
from headwater.logtier.metadata.shared_store import CHANGES
from headwater.logtier.metadata.store import Create, MetadataStore, NodeExistsError, Operation
from headwater.logtier.protocol import uuids
from headwater.logtier.protocol.features import FIRST_FEATURES
from headwater.logtier.runtime.random_bytes import RandomBytes
from headwater.logtier.security.scram import UNKNOWN_USERS_KEY_BYTES

log = logging.getLogger(__name__)


async def bootstrap(store: MetadataStore, prng: random.Random, random_bytes: RandomBytes) -> None:
    """Create what a new local store lacks, and give topics of an earlier version the present form.

    What exists stays as it is. The first call sets the cluster id.

    Raises:
        CorruptNodeError: A topic has data that this version cannot read.
        MetadataStoreError: The store is not available.
    """
    await _create_first_nodes(store, _first_nodes(prng, random_bytes))
    await _convert_topics(store)


async def bootstrap_cluster(
    store: MetadataStore, prng: random.Random, random_bytes: RandomBytes, folders: Mapping[str, str]
) -> None:
    """Create what a new store lacks that brokers share; every broker may call this at its start.

    The cluster id is stored before any log folder has it, so that a first start may be repeated. A broker whose folders
    have one never begins a cluster: without its nodes the logs would be those of unknown topics.

    Args:
        folders: The cluster ids of this broker's log folders, by their paths; new folders have none.

    Raises:
        ClusterGoneError: The folders belong to a cluster, and the store has none. Nothing was written.
        CorruptNodeError: The cluster id, or the controller epoch, without which this broker is never elected, cannot be
            read.
        MetadataStoreError: The store is not available.
    """
    if folders and await stored_cluster_id(store) is None:
        folder, cluster_id = next(iter(folders.items()))
        raise ClusterGoneError(
            paths.CLUSTER_ID,
            f"ZooKeeper has no cluster, and log folder {folder} belongs to cluster {cluster_id}; restore ZooKeeper's "
            "data, or set zookeeper.connect to the servers and the chroot of that cluster. A new cluster needs new "
            "folders",
        )
    await _create_first_nodes(store, _first_nodes(prng, random_bytes) | {CHANGES: b"0"})
    paths.decode_controller_epoch((await store.get(paths.CONTROLLER_EPOCH)).data)


def _first_nodes(prng: random.Random, random_bytes: RandomBytes) -> dict[str, bytes]:
    return {
        **dict.fromkeys(paths.PERSISTENT_PARENTS, b""),
        paths.CLUSTER_ID: paths.encode_cluster_id(uuids.to_text(uuids.random_uuid(prng))),
        paths.CONTROLLER_EPOCH: b"0",
        # A cluster of earlier releases, which stored no levels, has the same ones.
        paths.FEATURES: paths.encode_features(FIRST_FEATURES),
        # Stored: salts that change with a restart would reveal unknown users.
        paths.UNKNOWN_USERS_KEY: encode_unknown_users_key(random_bytes(UNKNOWN_USERS_KEY_BYTES)),
    }


async def _create_first_nodes(store: MetadataStore, first_nodes: Mapping[str, bytes]) -> None:
    """Create the missing nodes, all of them at once."""
    while True:
        missing = [Create(path, data) for path, data in first_nodes.items() if not await store.exists(path)]
        if not missing:
            return
        try:
            await store.multi(missing)
        except NodeExistsError as error:
            log.info("another broker created %s first", error.path)


async def _convert_topics(store: MetadataStore) -> None:
    """Give topics of a version that stored no partition states their first ones (`earlier_topics`).

    Only a local store has such topics: its folder is locked, so that no controller writes meanwhile. Their leader epoch
    is that of the coming controller, which is above every epoch that the earlier version used.
    """
    leader_epoch = paths.decode_controller_epoch((await store.get(paths.CONTROLLER_EPOCH)).data) + 1
    operations: list[Operation] = []
    for name in await store.children(paths.TOPICS):
        node = await store.get(paths.topic_path(name))
        operations += convert_topic(name, node.data, leader_epoch)
    if operations:
        await store.multi(operations)
        log.info("the partitions of earlier topics have stored states now, from leader epoch %d", leader_epoch)
