"""DescribeTransactions: producer, start time and partitions of transactional ids (KIP-664)."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 65
VERSIONS = (0, 0)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Describe each id separately."""
    return {"transaction_states": [_describe(name, context) for name in request.transactional_ids]}


def _describe(transactional_id: str, context: RequestContext) -> dict[str, Any]:
    try:
        if not context.is_authorized(AclOperation.describe, ResourceType.transactional_id, transactional_id):
            raise KafkaError(ErrorCode.transactional_id_authorization_failed)
        metadata = context.services.transactions.describe(transactional_id)
    except KafkaError as error:
        return {
            "error_code": error.code,
            "transactional_id": transactional_id,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": 0,
            "producer_epoch": 0,
            "topics": [],
        }
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(metadata.partitions):
        by_topic.setdefault(topic, []).append(partition)
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": metadata.state.title,
        "transaction_timeout": metadata.timeout_ms,
        "transaction_start_time": metadata.start_ms,
        "producer_id": metadata.producer_id,
        "producer_epoch": metadata.producer_epoch,
        "topics": [
            {"topic": topic, "partitions": partitions}
            for topic, partitions in by_topic.items()
            if context.is_authorized(AclOperation.describe, ResourceType.topic, topic, log_denied=False)
        ],
    }
