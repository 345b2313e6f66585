"""Which committed offsets belong to topics that were deleted. Pure."""

from collections.abc import Iterable

from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.protocol.topic_partition import TopicPartition


def of_missing_topics(
    held: Iterable[tuple[TopicPartition, CommittedOffset]], image: MetadataImage
) -> list[TopicPartition]:
    """Return the partitions whose commits, including those of open transactions, all belong to a deleted topic.

    The image has the ids of deleted topics for some days, and of a topic that was created anew another id. A topic that
    is only missing may come back; offsets of earlier versions have no id.
    """
    is_gone: dict[TopicPartition, bool] = {}
    for key, committed in held:
        topic = image.topic(key.topic)
        if topic is None:
            is_of_another = committed.topic_id is None or image.is_deleted(committed.topic_id)
        else:
            is_of_another = committed.topic_id not in (None, topic.topic_id)
        # A tombstone deletes every offset of a partition: it must not delete one of the present topic.
        is_gone[key] = is_gone.get(key, True) and is_of_another
    return [key for key, all_gone in is_gone.items() if all_gone]
