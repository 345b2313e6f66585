"""InitProducerId: an id for an idempotent producer, never given to another one.

A transactional id is refused: transactions are not implemented. Clients rarely come so far: FindCoordinator, which they
ask before, refuses it with the reason. A producer that names its present id (version 3 on, KIP-360) gets a new one as
well, as in Kafka: only transactional producers keep theirs.
"""

import logging
from typing import Any, Final

from logtier.handlers.context import RequestContext
from logtier.protocol.errors import ErrorCode, KafkaError

API_KEY = 22
VERSIONS = (0, 5)

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1

log = logging.getLogger(__name__)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Give out an id with epoch 0."""
    if request.transactional_id is not None:
        log.warning(
            "client %s at %s asked for transactional id %r: transactions are not supported by this release",
            context.client_id,
            context.client_host,
            request.transactional_id[:249],
        )
        return _refused(ErrorCode.unsupported_version)
    producer_id = getattr(request, "producer_id", NO_PRODUCER_ID)
    producer_epoch = getattr(request, "producer_epoch", NO_PRODUCER_EPOCH)
    if (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_PRODUCER_EPOCH):
        return _refused(ErrorCode.invalid_request)
    try:
        new_id = await context.services.controller.producer_ids.next()
    except KafkaError as error:
        log.warning("no producer id for client %s: %s", context.client_id, error)
        return _refused(error.code)
    return {"error_code": ErrorCode.none, "producer_id": new_id, "producer_epoch": 0}


def _refused(code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_PRODUCER_EPOCH}
