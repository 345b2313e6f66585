"""BrokerHeartbeat: the controller moves leaderships away from a broker, or from some of its log folders.

A broker wants to shut down (KIP-631, KIP-841), or a log folder of it has failed (KIP-858) or is full. Brokers send it
for these only: the node of its registration shows whether a broker is alive, and the state of its folders.
"""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode

API_KEY = 63
VERSIONS = (2, 2)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Move the leaderships, and tell the broker whether it may stop."""
    context.require_broker()
    may_stop = await context.services.controller.broker_heartbeat(
        request.broker_id, request.broker_epoch, wants_shutdown=request.want_shut_down
    )
    return {"error_code": ErrorCode.none, "is_caught_up": True, "is_fenced": False, "should_shut_down": may_stop}
