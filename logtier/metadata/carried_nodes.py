"""The nodes of a single node's metadata store, as a store that brokers share gets them. Pure."""

from dataclasses import dataclass
from typing import Final

from headwater.logtier.metadata import paths
from headwater.logtier.metadata.earlier_topics import convert_topic
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.journal_entries import ReplayedNodes
from headwater.logtier.metadata.shared_store import CHANGES
from headwater.logtier.metadata.store import Create
from headwater.logtier.protocol.features import SUPPORTED_FEATURES, check_supported

CARRIED_EPOCH: Final = 0
"""Broker epoch of the carried registration: below each czxid, so that every later registration is a newer one."""

_TRANSACTION_CONFIGS: Final = paths.topic_config_path("__transaction_state")
_MIN_ISR: Final = "min.insync.replicas"

_FIRST_NODES: Final = (*paths.PERSISTENT_PARENTS, paths.CLUSTER_ID, paths.CONTROLLER_EPOCH, paths.UNKNOWN_USERS_KEY)


class EarlierMetadataError(Exception):
    """The nodes are those of an earlier version, which a start of the node with this version completes."""


class OtherBrokerError(Exception):
    """The metadata is not that of the one broker."""


@dataclass(frozen=True, slots=True)
class CarriedNodes:
    """The nodes to create, parents before children, and the image that they make."""

    creates: tuple[Create, ...]
    image: MetadataImage


def carry_nodes(local: ReplayedNodes, broker_id: int) -> CarriedNodes:
    """Return the nodes of a shared store with the metadata of a single node that has stopped.

    All nodes keep their data, with two exceptions. The registration of the broker gets another epoch: epochs are zxids,
    and those of the shared store begin at 1. `__transaction_state` loses the min.insync.replicas of 1 that a node gives
    to it: that of the cluster applies, at most the number of replicas. The list of changes continues with the local
    store's number.

    Raises:
        EarlierMetadataError: A first node is missing, or a topic has no partition states.
        OtherBrokerError: The store knows another broker than this one.
        CorruptNodeError: A node has data that this version cannot read.
        UnsupportedFeaturesError: The metadata are those of a later release.
    """
    nodes = {path: node.data for path, node in local.tree.persistent_nodes()}
    if missing := [path for path in _FIRST_NODES if path not in nodes]:
        raise EarlierMetadataError(f"{missing[0]} is missing")
    if paths.FEATURES in nodes:
        check_supported(SUPPORTED_FEATURES, paths.decode_features(paths.FEATURES, nodes[paths.FEATURES]))
    _check_topics(nodes)
    image = MetadataImage().apply(nodes.items())
    _check_broker(image, broker_id)
    paths.decode_controller_epoch(nodes[paths.CONTROLLER_EPOCH])
    if paths.PRODUCER_ID_BLOCK in nodes:
        paths.decode_producer_id_block(nodes[paths.PRODUCER_ID_BLOCK])
    known = image.registrations[broker_id]
    nodes[paths.known_broker_path(broker_id)] = paths.encode_known_broker(
        known.host, known.port, known.rack, CARRIED_EPOCH, known.endpoints, process=known.process
    )
    _drop_least_min_isr(nodes)
    nodes[CHANGES] = b"%d" % local.end_offset
    return CarriedNodes(
        tuple(Create(path, nodes[path]) for path in sorted(nodes)), MetadataImage().apply(nodes.items())
    )


def _check_topics(nodes: dict[str, bytes]) -> None:
    for path, data in nodes.items():
        parent, _, name = path.rpartition("/")
        if parent == paths.TOPICS and convert_topic(name, data, leader_epoch=0):
            raise EarlierMetadataError(f"{path} has no partition states")


def _drop_least_min_isr(nodes: dict[str, bytes]) -> None:
    if _TRANSACTION_CONFIGS not in nodes:
        return
    configs = paths.decode_config(_TRANSACTION_CONFIGS, nodes[_TRANSACTION_CONFIGS])
    if configs.get(_MIN_ISR) != "1":
        return
    del configs[_MIN_ISR]
    if configs:
        nodes[_TRANSACTION_CONFIGS] = paths.encode_config(configs)
    else:
        del nodes[_TRANSACTION_CONFIGS]  # a topic without configs has no node: the next change would create it


def _check_broker(image: MetadataImage, broker_id: int) -> None:
    if set(image.registrations) != {broker_id}:
        known = ", ".join(map(str, sorted(image.registrations))) or "none"
        raise OtherBrokerError(f"its metadata knows the brokers {known}, and its logs are those of broker {broker_id}")
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if partition.replicas != (broker_id,):
                raise OtherBrokerError(f"partition {topic.name}-{index} has the replicas {list(partition.replicas)}")
