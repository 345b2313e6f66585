"""EndTxn: commits or aborts a transaction; answered when the outcome is in the log, before the markers.

From version 5 on (transaction.version 2) the response has the epoch of the next transaction, so that late batches of
earlier transactions cannot become part of it (KIP-890).
"""

import logging
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation, ResourceType
from headwater.logtier.transaction.metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTION_VERSION_CLASSIC,
    TRANSACTION_VERSION_WITH_EPOCH_BUMPS,
    ProducerIdAndEpoch,
)

API_KEY = 26
VERSIONS = (0, 5)

#: Each transaction has its own epoch.
_EPOCH_BUMPS_FROM = 5
#: Earlier versions report a fenced producer as INVALID_PRODUCER_EPOCH.
_FENCED_FROM = 2


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """End the producer's transaction."""
    if not context.is_authorized(AclOperation.write, ResourceType.transactional_id, request.transactional_id):
        return _refused(ErrorCode.transactional_id_authorization_failed)
    has_bumps = context.api_version >= _EPOCH_BUMPS_FROM
    try:
        producer = await context.services.transactions.end(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            commit=request.committed,
            client_version=TRANSACTION_VERSION_WITH_EPOCH_BUMPS if has_bumps else TRANSACTION_VERSION_CLASSIC,
        )
    except KafkaError as error:
        context.log_refusal("EndTxn", error, logging.INFO)
        if error.code is ErrorCode.producer_fenced and context.api_version < _FENCED_FROM:
            return _refused(ErrorCode.invalid_producer_epoch)
        return _refused(error.code)
    return {"error_code": ErrorCode.none, "producer_id": producer.producer_id, "producer_epoch": producer.epoch}


def _refused(code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_PRODUCER_EPOCH}
