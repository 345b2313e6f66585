"""AddOffsetsToTxn: adds a group's offsets partition to a transaction (before transaction.version 2)."""

import logging
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation, ResourceType
from headwater.logtier.transaction.metadata import TRANSACTION_VERSION_CLASSIC, ProducerIdAndEpoch

API_KEY = 25
VERSIONS = (0, 4)

#: Earlier versions report a fenced producer as INVALID_PRODUCER_EPOCH.
_FENCED_FROM = 2


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Add the group's partition of `__consumer_offsets`."""
    if not context.is_authorized(AclOperation.write, ResourceType.transactional_id, request.transactional_id):
        return {"error_code": ErrorCode.transactional_id_authorization_failed}
    if not context.is_authorized(AclOperation.read, ResourceType.group, request.group_id):
        return {"error_code": ErrorCode.group_authorization_failed}
    services = context.services
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        partition = await services.groups.offsets_partition(request.group_id)
        await services.transactions.add_partitions(
            request.transactional_id, producer, {partition}, client_version=TRANSACTION_VERSION_CLASSIC
        )
    except KafkaError as error:
        context.log_refusal("AddOffsetsToTxn", error, logging.INFO)
        if error.code is ErrorCode.producer_fenced and context.api_version < _FENCED_FROM:
            return {"error_code": ErrorCode.invalid_producer_epoch}
        return {"error_code": error.code}
    return {"error_code": ErrorCode.none}
