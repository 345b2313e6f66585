"""Produce: append record batches to partitions (KIP-98; acks 0, 1, all).

Versions 3-13; 0-2 are advertised all the same, since librdkafka before 2.11 sends uncompressed batches to a broker that
does not (librdkafka#4956). As with Kafka 4, a request in one of them closes the connection.
"""

import logging
from typing import Any

from logtier.handlers.context import RequestContext
from logtier.metadata.topic_names import INTERNAL_TOPICS
from logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from logtier.protocol.produce_response import ProducedPartition, encode_produce_response
from logtier.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

API_KEY = 0
VERSIONS = (3, 13)
ADVERTISED_VERSIONS = (0, 13)

ACKS = (-1, 0, 1)
NO_RECORDS = KafkaError(ErrorCode.invalid_record, "a partition of the request has no records")
NO_TRANSACTIONS = KafkaError(
    ErrorCode.invalid_request, "transactional producers are not supported: leave transactional.id out"
)
INTERNAL_TOPIC = KafkaError(
    ErrorCode.invalid_topic_exception, "this topic is the broker's own: its records decide what groups have committed"
)
INVALID_ACKS = KafkaError(ErrorCode.invalid_required_acks, "acks must be 0, 1 or -1 (all)")


def handle(request: Any, context: RequestContext) -> list[bytes] | None:
    """Append each partition's batches; with acks=0 an error closes the connection: there is no response to tell it."""
    services = context.services
    acks = request.acks
    refusal = None
    if acks not in ACKS:
        refusal = INVALID_ACKS
    elif request.transactional_id is not None:
        refusal = NO_TRANSACTIONS
    now_ms = services.clock.now_ms()
    topics = []
    first_error: KafkaError | None = None
    for topic_data in request.topic_data:
        topic_id = getattr(topic_data, "topic_id", None)
        name = getattr(topic_data, "name", "")
        unknown_id = None
        if not name:
            topic = services.metadata.image.topic_by_id(topic_id) if topic_id else None
            if topic is None:
                unknown_id = KafkaError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
            else:
                name = topic.name
        partitions = []
        for data in topic_data.partition_data:
            try:
                if refusal or unknown_id:
                    raise refusal or unknown_id  # type: ignore[misc]
                if name in INTERNAL_TOPICS:
                    raise INTERNAL_TOPIC
                if not data.records:
                    raise NO_RECORDS
                info = services.replica_manager.append(
                    TopicPartition(name, data.index), data.records, acks=acks, now_ms=now_ms
                )
            except KafkaError as error:
                first_error = first_error or error
                _log_refusal(name, data.index, error, context)
                partitions.append(ProducedPartition(data.index, error.code, message=error.message or None))
            else:
                partitions.append(
                    ProducedPartition(
                        data.index, ErrorCode.none, info.first_offset, info.log_append_time_ms, info.log_start_offset
                    )
                )
        topics.append((name, topic_id, partitions))
    if acks == 0:
        if first_error is not None:
            raise ProtocolViolationError(f"produce with acks=0 failed: {first_error}")
        return None
    return [encode_produce_response(context.api_version, context.correlation_id, topics)]


def _log_refusal(topic: str, index: int, error: KafkaError, context: RequestContext) -> None:
    logger.warning(
        "refused a produce to %s-%d of client %s at %s: %s", topic, index, context.client_id, context.client_host, error
    )
