"""OffsetForLeaderEpoch: the end offset of a leader epoch (KIP-101, KIP-279, KIP-320).

Replicas and consumers compare it with their position: records beyond it were lost with the old leader.
"""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.log.leader_epochs import EpochEnd
from headwater.logtier.log.log import Log
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
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
        partition.check_leader(wanted.current_leader_epoch)
    except KafkaError as error:
        return _refused(topic_partition.partition, error.code)
    leader_epoch, end_offset = _end_of(partition, wanted.leader_epoch)
    return {
        "error_code": ErrorCode.none,
        "partition": topic_partition.partition,
        "leader_epoch": leader_epoch,
        "end_offset": end_offset,
    }


def _end_of(partition: Partition[Log], leader_epoch: int) -> EpochEnd:
    """Return the end of an epoch; the leader's present epoch ends at the log end offset, even without records."""
    log = partition.log
    if leader_epoch == partition.leader_epoch:
        return EpochEnd(leader_epoch, log.log_end_offset)
    latest = log.leader_epochs.latest
    if _UNDEFINED < latest < leader_epoch < partition.leader_epoch:
        return EpochEnd(latest, log.log_end_offset)
    return log.leader_epochs.end_offset_for(leader_epoch, log.log_end_offset)


def _refused(index: int, error_code: ErrorCode) -> dict[str, Any]:
    return {"error_code": error_code, "partition": index, "leader_epoch": _UNDEFINED, "end_offset": _UNDEFINED}
