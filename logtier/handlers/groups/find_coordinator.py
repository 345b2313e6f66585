"""FindCoordinator: the coordinator of a group or a transactional id; the first request creates its topic."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata.image import BrokerRegistration
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 10
VERSIONS = (0, 6)

#: Several keys in one request (KIP-699).
_BATCHED_FROM = 4

_GROUP = 0
_TRANSACTION = 1
_SHARE = 2


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Look up each key separately."""
    key_type = getattr(request, "key_type", _GROUP)
    if context.api_version < _BATCHED_FROM:
        answer = await _answer(request.key, key_type, context)
        del answer["key"]
        return answer
    return {"coordinators": [await _answer(key, key_type, context) for key in request.coordinator_keys]}


async def _answer(key: str, key_type: int, context: RequestContext) -> dict[str, Any]:
    try:
        broker = await _find(key, key_type, context)
    except KafkaError as error:
        return {
            "key": key,
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": error.code,
            "error_message": error.message or None,
        }
    host, port = broker.reached_by(context.listener.name)
    return {
        "key": key,
        "node_id": broker.id,
        "host": host,
        "port": port,
        "error_code": ErrorCode.none,
        "error_message": None,
    }


async def _find(key: str, key_type: int, context: RequestContext) -> BrokerRegistration:
    if key_type == _GROUP:
        if not context.is_authorized(AclOperation.describe, ResourceType.group, key):
            raise KafkaError(ErrorCode.group_authorization_failed, "Group authorization failed.")
        return await context.services.groups.find(key)
    if key_type == _TRANSACTION:
        if not context.is_authorized(AclOperation.describe, ResourceType.transactional_id, key):
            raise KafkaError(ErrorCode.transactional_id_authorization_failed, "Transactional Id authorization failed.")
        return await context.services.transactions.find(key)
    if key_type == _SHARE:
        # Not coordinator_not_available, which clients would retry until their timeout.
        refusal = KafkaError(ErrorCode.unsupported_version, "share groups are not supported by this release")
        context.log_refusal(f"FindCoordinator for {key[:249]!r}", refusal)
        raise refusal
    raise KafkaError(ErrorCode.invalid_request, f"unknown coordinator type {key_type}")
