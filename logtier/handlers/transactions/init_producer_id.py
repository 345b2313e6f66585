"""InitProducerId: a unique id for an idempotent producer; id and epoch for a transactional one.

A transactional producer fences the previous one with its transactional id, whose ongoing transaction is aborted. A
producer that sends its present id and epoch (version 3 on, KIP-360) continues after an error; an idempotent producer
that does so gets a new id, as in Kafka.
"""

import logging
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.messages import milliseconds
from headwater.logtier.security.operations import AclOperation, ResourceType
from headwater.logtier.transaction.metadata import NO_PRODUCER, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch

API_KEY = 22
VERSIONS = (0, 5)

#: Earlier versions report a fenced producer as INVALID_PRODUCER_EPOCH.
_FENCED_FROM = 4


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Allocate an id and an epoch."""
    try:
        producer = await _init(request, context)
    except KafkaError as error:
        code = error.code
        # Often the previous transaction is still being aborted at a start: the client retries.
        level = logging.INFO if code is ErrorCode.concurrent_transactions else logging.WARNING
        context.log_refusal("InitProducerId", error, level)
        if code is ErrorCode.producer_fenced and context.api_version < _FENCED_FROM:
            code = ErrorCode.invalid_producer_epoch
        return {"error_code": code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_PRODUCER_EPOCH}
    return {"error_code": ErrorCode.none, "producer_id": producer.producer_id, "producer_epoch": producer.epoch}


async def _init(request: Any, context: RequestContext) -> ProducerIdAndEpoch:
    services = context.services
    transactional_id = request.transactional_id
    if transactional_id is not None:
        if not context.is_authorized(AclOperation.write, ResourceType.transactional_id, transactional_id):
            raise KafkaError(ErrorCode.transactional_id_authorization_failed)
    elif not _may_be_idempotent(context):
        raise KafkaError(ErrorCode.cluster_authorization_failed)
    present = ProducerIdAndEpoch(
        getattr(request, "producer_id", NO_PRODUCER_ID), getattr(request, "producer_epoch", NO_PRODUCER_EPOCH)
    )
    if (present.producer_id == NO_PRODUCER_ID) != (present.epoch == NO_PRODUCER_EPOCH):
        raise KafkaError(ErrorCode.invalid_request, "a request has both producer id and epoch, or neither")
    if transactional_id is None:
        return ProducerIdAndEpoch(await services.changes.producer_ids.next(), 0)
    return await services.transactions.init_producer(
        transactional_id,
        milliseconds(request.transaction_timeout),
        None if present == NO_PRODUCER else present,
    )


def _may_be_idempotent(context: RequestContext) -> bool:
    """Whether the client may write idempotently: every client that may write to any topic may (KIP-679)."""
    return context.is_authorized(
        AclOperation.idempotent_write, ResourceType.cluster, log_denied=False
    ) or context.is_authorized_for_any(AclOperation.write, ResourceType.topic)
