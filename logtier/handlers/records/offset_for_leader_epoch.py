"""OffsetForLeaderEpoch: the end offset of a leader epoch (KIP-101, KIP-279, KIP-320).

Replicas and consumers compare it with their position: records beyond it were lost with the old leader.
"""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 23
VERSIONS = (2, 4)

_UNDEFINED = -1


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Look up each partition separately; requires DESCRIBE on the topic, or CLUSTER_ACTION on the cluster."""
    is_replica = context.is_authorized(AclOperation.cluster_action, ResourceType.cluster, log_denied=False)
    topics = []
    for topic in request.topics:
        allowed = is_replica or context.is_authorized(AclOperation.describe, ResourceType.topic, topic.topic)
        topics.append(
            {
                "topic": topic.topic,
                "partitions": [
                    _partition(TopicPartition(topic.topic, wanted.partition), wanted, context)
                    if allowed
                    else _refused(wanted.partition, ErrorCode.topic_authorization_failed)
                    for wanted in topic.partitions
                ],
            }
        )
    return {"topics": topics}


def _partition(topic_partition: TopicPartition, wanted: Any, context: RequestContext) -> dict[str, Any]:
    try:
        partition = context.services.replica_manager.partition(topic_partition)
        # First the epoch, as in Kafka: a follower tells that it knows a newer leader.
        partition.check_epoch(wanted.current_leader_epoch)
        partition.check_leader()
    except KafkaError as error:
        return _refused(topic_partition.partition, error.code)
    leader_epoch, end_offset = partition.end_of_epoch(wanted.leader_epoch)
    return {
        "error_code": ErrorCode.none,
        "partition": topic_partition.partition,
        "leader_epoch": leader_epoch,
        "end_offset": end_offset,
    }


def _refused(index: int, error_code: ErrorCode) -> dict[str, Any]:
    return {"error_code": error_code, "partition": index, "leader_epoch": _UNDEFINED, "end_offset": _UNDEFINED}
