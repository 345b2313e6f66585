"""DeleteRecords: raises the log start offset of partitions (KIP-107).

Records below it are no longer readable; the next retention check deletes the files.
"""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 21
VERSIONS = (0, 2)

_NO_LOW_WATERMARK = -1


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Process each partition separately; of a partition listed twice the last offset counts."""
    topics: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        offsets = topics.setdefault(topic.name, {})
        for partition in topic.partitions:
            offsets[partition.partition_index] = partition.offset
    return {
        "topics": [
            {
                "name": name,
                "partitions": [_partition(TopicPartition(name, index), offsets[index], context) for index in offsets],
            }
            for name, offsets in topics.items()
        ]
    }


def _partition(topic_partition: TopicPartition, offset: int, context: RequestContext) -> dict[str, Any]:
    try:
        low_watermark = _delete(topic_partition, offset, context)
    except KafkaError as error:
        return {
            "partition_index": topic_partition.partition,
            "low_watermark": _NO_LOW_WATERMARK,
            "error_code": error.code,
        }
    return {
        "partition_index": topic_partition.partition,
        "low_watermark": low_watermark,
        "error_code": ErrorCode.none,
    }


def _delete(topic_partition: TopicPartition, offset: int, context: RequestContext) -> int:
    name = topic_partition.topic
    if not context.is_authorized(AclOperation.delete, ResourceType.topic, name):
        raise KafkaError(ErrorCode.topic_authorization_failed)
    topic = context.services.metadata.image.topic(name)
    if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    if name in INTERNAL_TOPICS:
        # Coordinators read their topics from the beginning.
        raise KafkaError(ErrorCode.invalid_topic_exception)
    try:
        return context.services.replica_manager.delete_records(topic_partition, offset)
    except OSError as error:
        raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
