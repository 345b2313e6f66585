"""OffsetDelete: deletes a group's committed offsets of topics that it no longer consumes (KIP-496)."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 47
VERSIONS = (0, 0)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Delete the offsets of existing partitions; others are rejected separately."""
    if not context.is_authorized(AclOperation.delete, ResourceType.group, request.group_id):
        return {"error_code": ErrorCode.group_authorization_failed, "topics": []}
    if not request.group_id:
        return {"error_code": ErrorCode.invalid_group_id, "topics": []}
    image = context.services.metadata.image
    errors: dict[TopicPartition, ErrorCode] = {}
    known = []
    for requested in request.topics:
        topic = image.topic(requested.name)
        partition_count = 0 if topic is None else len(topic.partitions)
        is_denied = not context.is_authorized(AclOperation.read, ResourceType.topic, requested.name)
        for partition in requested.partitions:
            key = TopicPartition(requested.name, partition.partition_index)
            errors[key] = ErrorCode.unknown_topic_or_partition
            if is_denied:
                errors[key] = ErrorCode.topic_authorization_failed
            elif 0 <= key.partition < partition_count:
                known.append(key)
    try:
        errors.update(await context.services.groups.delete_offsets(request.group_id, known))
    except KafkaError as error:
        return {"error_code": error.code, "topics": []}
    return {
        "error_code": ErrorCode.none,
        "topics": [
            {
                "name": requested.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": errors[TopicPartition(requested.name, partition.partition_index)],
                    }
                    for partition in requested.partitions
                ],
            }
            for requested in request.topics
        ],
    }
