"""AlterReplicaLogDirs: moves replicas between the folders of `log.dirs` (KIP-113).

A response without an error means that the move has begun; DescribeLogDirs lists the copy until it replaces the replica.
"""

import logging
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 34
VERSIONS = (1, 2)

logger = logging.getLogger(__name__)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Move each partition separately; of a partition listed twice the last folder counts."""
    may = context.is_authorized(AclOperation.alter, ResourceType.cluster)
    paths = {
        TopicPartition(topic.name, index): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    }
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic_partition, path in paths.items():
        code = _alter(topic_partition, path, context) if may else ErrorCode.cluster_authorization_failed
        topics.setdefault(topic_partition.topic, []).append(
            {"partition_index": topic_partition.partition, "error_code": code}
        )
    return {"results": [{"topic_name": name, "partitions": partitions} for name, partitions in topics.items()]}


def _alter(topic_partition: TopicPartition, path: str, context: RequestContext) -> ErrorCode:
    try:
        context.services.replica_manager.log_dirs.alter(topic_partition, path)
    except KafkaError as error:
        context.log_refusal(f"a move of {topic_partition}", error)
        return error.code
    except OSError as error:
        logger.error("%s cannot be moved to %s: %s", topic_partition, path, error)
        return ErrorCode.kafka_storage_error
    return ErrorCode.none
