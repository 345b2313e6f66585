"""UnregisterBroker: removes the registration of a broker that will not return (KIP-631)."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation

API_KEY = 64
VERSIONS = (0, 0)
#: The controller answers.
IS_FORWARDED = True


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Reject the request: brokers are registered only while they run, so that only running ones exist."""
    context.require_cluster(AclOperation.alter)
    if request.broker_id not in context.services.metadata.image.brokers:
        return {
            "error_code": ErrorCode.broker_id_not_registered,
            "error_message": f"Broker ID {request.broker_id} is not currently registered",
        }
    return {
        "error_code": ErrorCode.invalid_request,
        "error_message": f"Broker {request.broker_id} is running; its registration ends when it is stopped.",
    }
