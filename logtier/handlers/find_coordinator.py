"""FindCoordinator: which broker coordinates a group; the first one asked for creates `__consumer_offsets`.

A transactional producer asks here first, and is refused here, with the reason, in the code that its client gives up at.
librdkafka (and whoever asks for one key in a request) tries again until `init_transactions` runs out of time unless the
code is one of authorization; Java, from the versions with several keys on, gives up at any code that it does not know
as passing, and shows our message only with those that it has no text of its own for.
"""

import logging
from typing import Any

from logtier.handlers.context import RequestContext
from logtier.protocol.errors import ErrorCode, KafkaError

API_KEY = 10
VERSIONS = (0, 6)

#: Several keys in one request (KIP-699).
_BATCHED_FROM = 4

_GROUP = 0
_TRANSACTION = 1
_NOT_IMPLEMENTED = {
    _TRANSACTION: "transactions are not supported by this release: leave transactional.id out",
    2: "share groups are not supported by this release",
}

log = logging.getLogger(__name__)


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
            one_key = context.api_version < _BATCHED_FROM
            code = (
                ErrorCode.transactional_id_authorization_failed
                if one_key and key_type == _TRANSACTION
                else ErrorCode.unsupported_version
            )
            log.warning(
                "refused FindCoordinator of client %s at %s for %r: %s",
                context.client_id,
                context.client_host,
                key[:249],
                _NOT_IMPLEMENTED[key_type],
            )
            raise KafkaError(code, _NOT_IMPLEMENTED[key_type])
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
