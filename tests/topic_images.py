"""Topics of metadata images, as the controller would write them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.store import Create, Delete
from headwater.logtier.metadata.topic_nodes import create_topic, delete_topic, first_partition_state

Changes = list[tuple[str, bytes | None]]


def topic_changes(name: str, topic_id: uuid.UUID, replicas: Sequence[tuple[int, ...]]) -> Changes:
    """The changes of nodes that make a topic, or make it grow."""
    operations = create_topic(name, topic_id, [first_partition_state(brokers) for brokers in replicas])
    return [(each.path, each.data) for each in operations if isinstance(each, Create)]


def topic_deletion(image: MetadataImage, name: str) -> Changes:
    """The changes of nodes that delete a topic, its tombstone included."""
    topic = image.topics[name]
    deleted = [each.path for each in delete_topic(name, len(topic.partitions)) if isinstance(each, Delete)]
    return [*((path, None) for path in deleted), (paths.deleted_topic_path(topic.topic_id), b"1")]


def with_leader_epoch(image: MetadataImage, leader_epoch: int) -> MetadataImage:
    """The image with every partition in one leader epoch."""
    topics = {
        name: replace(topic, partitions=tuple(replace(each, leader_epoch=leader_epoch) for each in topic.partitions))
        for name, topic in image.topics.items()
    }
    return replace(image, topics=topics)
