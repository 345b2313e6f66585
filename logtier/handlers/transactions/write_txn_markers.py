"""WriteTxnMarkers: ends transactions in partitions, on behalf of a coordinator or an administrator (KIP-98, KIP-664).

This broker's coordinator writes markers directly. The API serves `kafka-transactions.sh abort`, which ends a hanging
transaction in a partition that its coordinator does not know.
"""

import logging
from typing import Any, Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 27
VERSIONS = (1, 1)

#: This version does not report whether each transaction has its own epoch, so this is not assumed.
_TRANSACTION_VERSION: Final = 1
#: Time for the in-sync replicas to have a marker; the request has no timeout of its own. Kafka's request.timeout.ms.
_TIMEOUT_MS: Final = 30_000

log = logging.getLogger(__name__)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Append each marker; an error concerns its partition only."""
    # Administrators have ALTER on the cluster; brokers have CLUSTER_ACTION.
    if not context.is_authorized(AclOperation.alter, ResourceType.cluster, log_denied=False):
        context.require_cluster(AclOperation.cluster_action)
    results: dict[int, dict[str, dict[int, ErrorCode]]] = {}
    for marker in request.markers:
        of_producer = results.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            of_topic = of_producer.setdefault(topic.name, {})
            for index in topic.partition_indexes:
                of_topic[index] = await _write(TopicPartition(topic.name, index), marker, context)
    return {
        "markers": [
            {
                "producer_id": producer_id,
                "topics": [
                    {
                        "name": name,
                        "partitions": [
                            {"partition_index": index, "error_code": code} for index, code in partitions.items()
                        ],
                    }
                    for name, partitions in topics.items()
                ],
            }
            for producer_id, topics in results.items()
        ]
    }


async def _write(topic_partition: TopicPartition, marker: Any, context: RequestContext) -> ErrorCode:
    what = "commit" if marker.transaction_result else "abort"
    try:
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            raise KafkaError(
                ErrorCode.invalid_request, f"no producer has id {marker.producer_id}, epoch {marker.producer_epoch}"
            )
        info = context.services.replica_manager.append_end_txn_marker(
            topic_partition,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            commit=marker.transaction_result,
            transaction_version=_TRANSACTION_VERSION,
        )
        replication = context.services.replica_manager.replication(topic_partition, info, _TIMEOUT_MS)
        if replication is not None:
            await replication
    except KafkaError as error:
        log.warning("refused a %s in %s of client %s: %s", what, topic_partition, context.client_id, error)
        return error.code
    context.services.groups.transactional.marker_written(
        topic_partition, marker.producer_id, info.first_offset, marker.transaction_result
    )
    log.info(
        "client %s at %s: %s of producer %d (epoch %d) in %s, offset %d",
        context.client_id,
        context.client_host,
        what,
        marker.producer_id,
        marker.producer_epoch,
        topic_partition,
        info.first_offset,
    )
    return ErrorCode.none
