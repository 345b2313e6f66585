"""Whether the metadata store is older than this broker's logs: it was restored from an old copy, perhaps."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from headwater.logtier.log.log import Log
from headwater.logtier.metadata.change_list import OrderedMetadataStore
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.shared_store import CHANGES
from headwater.logtier.metadata.store import MetadataStoreError
from headwater.logtier.metadata.topic_nodes import CHUNK_PARTITIONS, chunk_path, decode_chunk

_WHAT_TO_DO: Final = (
    "The broker does not start, since acknowledged records could be removed: stop the other brokers, and restore a "
    "newer copy of ZooKeeper's data (docs/how-to/cluster.md)"
)


class StoreBehindError(MetadataStoreError):
    """The store is older than the logs. A broker that followed it would lose what was acknowledged since."""


class _AheadLog(NamedTuple):
    log: Log
    path: str
    stored_epoch: int


async def check_applied_changes(store: OrderedMetadataStore, applied: int) -> None:
    """Check that the list of changes goes on where this broker has come to, or later.

    Raises:
        StoreBehindError: It ends before; the broker must not start, and has changed nothing.
    """
    if store.end_offset >= applied:
        return
    await store.sync()  # a server of a quorum may be behind
    end, _ = await store.snapshot(_no_paths)
    if end < applied:
        raise StoreBehindError(
            CHANGES,
            f"the metadata are older than the logs: the list of changes ends before {end}, and this broker has applied "
            f"those before {applied}. {_WHAT_TO_DO}",
        )


async def _no_paths() -> list[str]:
    return []


async def check_logs_not_ahead(store: OrderedMetadataStore, image: MetadataImage, logs: Iterable[Log]) -> None:
    """Check that no log has a leader epoch above the stored one, which every leader has had from the store.

    The image may lag behind a quorum's newest state: what is ahead of it is compared once more after a sync.

    Raises:
        StoreBehindError: A log is ahead; the broker must not start, and has changed nothing.
        CorruptNodeError: A chunk of partitions cannot be read.
    """
    ahead = _logs_ahead(image, logs)
    if not ahead:
        return
    await store.sync()
    paths = sorted({each.path for each in ahead})
    nodes = zip(paths, await store.get_many(paths), strict=True)
    chunks = {path: decode_chunk(path, node.data) for path, node in nodes if node is not None}
    still = []
    for each in ahead:
        chunk = chunks.get(each.path, ())
        place = each.log.topic_partition.partition % CHUNK_PARTITIONS
        if place < len(chunk) and chunk[place].leader_epoch < each.log.leader_epochs.latest:
            still.append(each._replace(stored_epoch=chunk[place].leader_epoch))
    if still:
        raise StoreBehindError(still[0].path, _reason(still))


def _logs_ahead(image: MetadataImage, logs: Iterable[Log]) -> list[_AheadLog]:
    found = []
    for log in logs:
        topic, index = image.topics.get(log.topic_partition.topic), log.topic_partition.partition
        if topic is None or topic.topic_id != log.topic_id or index >= len(topic.partitions):
            continue  # another topic's, which is set aside
        epoch = topic.partitions[index].leader_epoch
        if log.leader_epochs.latest > epoch:
            found.append(_AheadLog(log, chunk_path(topic.name, index // CHUNK_PARTITIONS), epoch))
    return found


def _reason(ahead: list[_AheadLog]) -> str:
    first = ahead[0]
    others = f" (and {len(ahead) - 1} more partitions)" if len(ahead) > 1 else ""
    return (
        f"the metadata are older than the logs: {first.log.topic_partition} has leader epoch {first.stored_epoch} in "
        f"ZooKeeper, and {first.log.leader_epochs.latest} in {first.log.directory}{others}. {_WHAT_TO_DO}"
    )
