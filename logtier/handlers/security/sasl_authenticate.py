"""SaslAuthenticate: a token of the mechanism chosen by SaslHandshake (KIP-152), and the server's token."""

import asyncio
import logging
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode

API_KEY = 36
VERSIONS = (0, 2)

logger = logging.getLogger(__name__)

_TOO_LATE = "SaslAuthenticate request received after successful authentication"


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Process the token; a failure is reported to the client after a delay and ends the connection."""
    sasl = context.sasl
    if sasl is None or not sasl.is_authenticating:
        return {"error_code": ErrorCode.illegal_sasl_state, "error_message": _TOO_LATE, "auth_bytes": b""}
    clock = context.services.clock
    answer = await sasl.authenticate(bytes(request.auth_bytes), clock.monotonic_ms(), clock.now_ms())
    if answer.reason and sasl.listener.failures.admit(context.client_host, clock.monotonic_ms()):
        logger.warning(
            "authentication of a client at %s by %s failed: %s", context.client_host, sasl.mechanism, answer.reason
        )
    if answer.error != ErrorCode.none:
        await asyncio.sleep(sasl.listener.failure_delay_ms / 1000)
    return {
        "error_code": answer.error,
        "error_message": answer.message,
        "auth_bytes": answer.token,
        "session_lifetime": answer.session_lifetime_ms,
    }
