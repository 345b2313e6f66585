"""DescribeTopicPartitions: topics with their partitions, page by page (KIP-966).

Each partition has its eligible leader replicas and its last known leader, empty lists if it has none; like Kafka, this
API never answers null.
"""

from collections.abc import Iterable
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.security.authorized_operations import NOT_ASKED, authorized_operations
from headwater.logtier.handlers.topics.metadata import partition_answer
from headwater.logtier.metadata.image import TopicImage
from headwater.logtier.metadata.topic_names import topic_name_problem
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 75
VERSIONS = (0, 0)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Describe the listed topics (all if none is listed) by name, from the cursor on, up to the limit.

    A cursor must refer to one of the listed topics; otherwise all of them get an error.
    """
    image = context.services.metadata.image
    cursor = request.cursor
    is_all = not request.topics
    names = sorted(image.topics if is_all else {topic.name for topic in request.topics})
    first_index = 0
    if cursor is not None:
        if cursor.partition_index < 0 or not (is_all or cursor.topic_name in names):
            return {"topics": [_refused(topic.name, ErrorCode.invalid_request) for topic in request.topics]}
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first_index = cursor.partition_index
    limit = min(request.response_partition_limit, context.services.metadata.config.max_request_partition_size_limit)
    return _page(names, first_index, max(1, limit), is_all, context)


def _page(names: Iterable[str], first_index: int, limit: int, is_all: bool, context: RequestContext) -> dict[str, Any]:
    topics: list[dict[str, Any]] = []
    next_cursor = None
    left = limit
    for name in names:
        start, first_index = first_index, 0
        if not context.is_authorized(AclOperation.describe, ResourceType.topic, name, log_denied=not is_all):
            if not is_all:
                topics.append(_refused(name, ErrorCode.topic_authorization_failed))
            continue
        if left == 0:
            next_cursor = {"topic_name": name, "partition_index": 0}
            break
        topic = context.services.metadata.image.topic(name)
        if topic is None:
            invalid = topic_name_problem(name) is not None
            code = ErrorCode.invalid_topic_exception if invalid else ErrorCode.unknown_topic_or_partition
            operations = authorized_operations(context, ResourceType.topic, name)
            topics.append(_refused(name, code) | {"topic_authorized_operations": operations})
            continue
        end = min(len(topic.partitions), start + left)
        topics.append(_topic(topic, start, end, context))
        if end < len(topic.partitions):
            next_cursor = {"topic_name": name, "partition_index": end}
            break
        left -= max(0, end - start)
    return {"topics": topics, "next_cursor": next_cursor}


def _topic(topic: TopicImage, first_index: int, end: int, context: RequestContext) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [
            _partition(
                index,
                topic.partitions[index],
                context.services.replica_manager.offline_replicas(topic.name, index),
            )
            for index in range(first_index, end)
        ],
        "topic_authorized_operations": authorized_operations(context, ResourceType.topic, topic.name),
    }


def _partition(index: int, partition: PartitionImage, offline_replicas: tuple[int, ...]) -> dict[str, Any]:
    last_known_leader = partition.last_known_leader
    return partition_answer(index, partition, offline_replicas) | {
        "eligible_leader_replicas": partition.elr,
        "last_known_elr": () if last_known_leader == NO_BROKER else (last_known_leader,),
    }


def _refused(name: str, error_code: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": error_code,
        "name": name,
        "topic_id": None,
        "is_internal": False,
        "partitions": [],
        "topic_authorized_operations": NOT_ASKED,
    }
