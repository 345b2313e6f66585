"""UnregisterBroker: removes the registration of a broker that will not return (KIP-631)."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation

API_KEY = 64
VERSIONS = (0, 0)
#: The controller answers.
IS_FORWARDED = True


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Remove what the controller knows of a broker that is away; one that runs is refused."""
    context.require_cluster(AclOperation.alter)
    try:
        await context.services.controller.unregister_broker(request.broker_id)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message}
    return {"error_code": ErrorCode.none, "error_message": None}
