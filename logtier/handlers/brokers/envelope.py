"""Envelope: a request that another broker forwards to the controller, in the name of its client (KIP-590).

Errors of the envelope are those of the forwarding broker: NOT_CONTROLLER lets it ask the next controller, also if the
embedded request was refused with it. Errors of the client are in the embedded response.
"""

import ipaddress
import logging
from typing import Any

from headwater.logtier.handlers.context import EmbeddedRequest, RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from headwater.logtier.security.serialized_principal import deserialize_principal

API_KEY = 58
VERSIONS = (0, 0)

logger = logging.getLogger(__name__)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Execute the embedded request as the client that sent it."""
    context.require_broker()
    services = context.services
    if not services.controller.is_active:
        raise KafkaError(ErrorCode.not_controller, "This broker is not the controller.")
    assert services.answer_embedded is not None, "set by the dispatcher"
    embedded = EmbeddedRequest(
        request.request_data,
        _principal(request.request_principal),
        _host(request.client_host_address),
        context.listener,
        context.reader,
    )
    try:
        response, error_codes = await services.answer_embedded(embedded)
    except ProtocolViolationError as error:
        if context.reader is None or context.reader.logs_refusal(embedded.client_host):
            logger.warning("a request that %s forwarded cannot be read: %s", context.client_host, error)
        raise KafkaError(ErrorCode.invalid_request, str(error)) from error
    if ErrorCode.not_controller in error_codes:
        return {"error_code": ErrorCode.not_controller, "response_data": None}
    return {"error_code": ErrorCode.none, "response_data": response}


def _principal(data: bytes | None) -> str:
    try:
        return deserialize_principal(data or b"")
    except ValueError as error:
        raise KafkaError(ErrorCode.principal_deserialization_failure, str(error)) from error


def _host(address: bytes) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_request, f"The client's address is none: {error}") from error
