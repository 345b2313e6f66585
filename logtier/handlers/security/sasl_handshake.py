"""SaslHandshake: the client chooses a mechanism; the response lists the available ones.

After version 0 each token is a frame, after version 1 it is sent by SaslAuthenticate.
"""

import asyncio
import logging
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode

API_KEY = 17
VERSIONS = (0, 1)

logger = logging.getLogger(__name__)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Begin an authentication; an unknown mechanism ends the connection after the response."""
    sasl = context.sasl
    if sasl is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
    now_ms = context.services.clock.monotonic_ms()
    error = sasl.handshake(request.mechanism, context.api_version, now_ms)
    if error == ErrorCode.unsupported_sasl_mechanism:
        if sasl.listener.failures.admit(context.client_host, now_ms):
            logger.warning(
                "a client at %s requested the SASL mechanism %r; the listener %s has %s",
                context.client_host,
                request.mechanism[:64],
                context.listener.name,
                ", ".join(sasl.mechanisms),
            )
        await asyncio.sleep(sasl.listener.failure_delay_ms / 1000)
    return {"error_code": error, "mechanisms": sasl.mechanisms}
