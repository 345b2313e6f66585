"""DescribeProducers: the producer states of partitions, in particular ongoing transactions (KIP-664).

Followers answer, too: Kafka's tool asks one broker for all of its replicas.
"""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata.topic_names import topic_name_problem
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import NO_SEQUENCE
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 61
VERSIONS = (0, 0)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Describe each partition separately."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _partition(TopicPartition(topic.name, index), _refusal(topic.name, context), context)
                    for index in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ]
    }


def _refusal(topic: str, context: RequestContext) -> KafkaError | None:
    problem = topic_name_problem(topic)
    if problem is not None:
        return KafkaError(ErrorCode.invalid_topic_exception, problem)
    if not context.is_authorized(AclOperation.read, ResourceType.topic, topic):
        return KafkaError(ErrorCode.topic_authorization_failed, "Topic authorization failed.")
    if context.services.metadata.image.topic(topic) is None:
        return KafkaError(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
    return None


def _partition(topic_partition: TopicPartition, refusal: KafkaError | None, context: RequestContext) -> dict[str, Any]:
    index = topic_partition.partition
    if refusal is not None:
        return {
            "partition_index": index,
            "error_code": refusal.code,
            "error_message": refusal.message,
            "active_producers": [],
        }
    try:
        partition = context.services.replica_manager.partition(topic_partition)
        partition.check_leader(or_follower=True)
    except KafkaError as error:
        return {"partition_index": index, "error_code": error.code, "active_producers": []}
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "active_producers": [
            {
                "producer_id": producer_id,
                "producer_epoch": state.epoch,
                "last_sequence": state.batches[-1].last_sequence if state.batches else NO_SEQUENCE,
                "last_timestamp": state.last_timestamp_ms,
                "coordinator_epoch": state.coordinator_epoch,
                "current_txn_start_offset": state.transaction_first_offset,
            }
            for producer_id, state in partition.log.producers
        ],
    }
