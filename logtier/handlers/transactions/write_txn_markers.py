"""WriteTxnMarkers: ends transactions in partitions, on behalf of a coordinator or an administrator (KIP-98, KIP-664).

Coordinators of other brokers send it; this broker's own writes markers directly. `kafka-transactions.sh abort` uses it
to end a hanging transaction in a partition that its coordinator does not know.
"""

import asyncio
import logging
from typing import Any, Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.audit_log import shown
from headwater.logtier.security.operations import AclOperation, ResourceType
from headwater.logtier.transaction.markers import Marker

API_KEY = 27
VERSIONS = (1, 2)
#: Version 2 is for brokers (KIP-1228).
ADVERTISED_VERSIONS = (1, 1)

#: From this version on a marker names its transaction version.
_TRANSACTION_VERSION_FROM: Final = 2
#: Version 1 does not report whether each transaction has its own epoch, so this is not assumed.
_TRANSACTION_VERSION: Final = 1

log = logging.getLogger(__name__)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Append all markers, then wait until they are replicated; an error concerns its partition only."""
    is_of_broker = context.api_version >= _TRANSACTION_VERSION_FROM
    if is_of_broker and context.listener.name != context.services.inter_broker_listener:
        raise ProtocolViolationError(f"WriteTxnMarkers {context.api_version} is served between brokers only")
    # Administrators have ALTER on the cluster; brokers have CLUSTER_ACTION.
    if not context.is_authorized(AclOperation.alter, ResourceType.cluster, log_denied=False):
        context.require_cluster(AclOperation.cluster_action)
    context.exempt()
    answers = await asyncio.gather(*(_write(marker, context) for marker in request.markers))
    results: dict[int, dict[str, dict[int, ErrorCode]]] = {}
    for marker, codes in zip(request.markers, answers, strict=True):
        of_producer = results.setdefault(marker.producer_id, {})
        for (topic, index), code in codes.items():
            of_producer.setdefault(topic, {})[index] = code
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


async def _write(marker: Any, context: RequestContext) -> dict[TopicPartition, ErrorCode]:
    partitions = [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]
    what = "commit" if marker.transaction_result else "abort"
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        reason = f"no producer has id {marker.producer_id}, epoch {marker.producer_epoch}"
        refused = dict.fromkeys(partitions, KafkaError(ErrorCode.invalid_request, reason))
    else:
        refused = await context.services.markers.write_here(
            Marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.transaction_result,
                marker.coordinator_epoch,
                getattr(marker, "transaction_version", _TRANSACTION_VERSION),
            ),
            partitions,
        )
    for topic_partition, error in refused.items():
        context.log_refusal(f"a {what} in {topic_partition}", error)
    if context.api_version < _TRANSACTION_VERSION_FROM:
        for topic_partition in partitions:
            if topic_partition not in refused:
                log.info(
                    "client %s at %s: %s of producer %d (epoch %d) in %s",
                    shown(str(context.client_id)),
                    context.client_host,
                    what,
                    marker.producer_id,
                    marker.producer_epoch,
                    topic_partition,
                )
    return {each: refused[each].code if each in refused else ErrorCode.none for each in partitions}
