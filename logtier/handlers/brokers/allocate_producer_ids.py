"""AllocateProducerIds: the controller gives a broker a block of producer ids (KIP-730)."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode

API_KEY = 67
VERSIONS = (0, 0)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Allocate a block, which stays unused if the answer is lost."""
    context.require_broker()
    block = await context.services.controller.allocate_producer_ids_of(request.broker_id, request.broker_epoch)
    return {"error_code": ErrorCode.none, "producer_id_start": block.start, "producer_id_len": len(block)}
