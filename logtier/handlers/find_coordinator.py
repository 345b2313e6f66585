"""FindCoordinator: which broker coordinates a group; the first one asked for creates `__consumer_offsets`."""

from typing import Any

from logtier.handlers.context import RequestContext
from logtier.protocol.errors import ErrorCode, KafkaError

API_KEY = 10
VERSIONS = (0, 6)

#: Several keys in one request (KIP-699).
_BATCHED_FROM = 4

_GROUP = 0
_NOT_IMPLEMENTED = {1: "transactions are not implemented yet", 2: "share groups are not implemented"}


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Look up each key by itself."""
    key_type = getattr(request, "key_type", _GROUP)
    if context.api_version < _BATCHED_FROM:
        answer = await _find(request.key, key_type, context)
        del answer["key"]
        return answer
    return {"coordinators": [await _find(key, key_type, context) for key in request.coordinator_keys]}


async def _find(key: str, key_type: int, context: RequestContext) -> dict[str, Any]:
    try:
        if key_type in _NOT_IMPLEMENTED:
            # Not coordinator_not_available, which clients repeat until their patience ends.
            raise KafkaError(ErrorCode.unsupported_version, _NOT_IMPLEMENTED[key_type])
        if key_type != _GROUP:
            raise KafkaError(ErrorCode.invalid_request, f"unknown coordinator type {key_type}")
        broker = await context.services.groups.find(key)
    except KafkaError as error:
        return {
            "key": key,
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": error.code,
            "error_message": error.message or None,
        }
    return {
        "key": key,
        "node_id": broker.id,
        "host": broker.host,
        "port": broker.port,
        "error_code": ErrorCode.none,
        "error_message": None,
    }
