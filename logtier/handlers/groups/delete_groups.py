"""DeleteGroups: deletes groups without members, with their committed offsets (KIP-229)."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 42
VERSIONS = (0, 2)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Delete each group separately, once."""
    return {
        "results": [
            {"group_id": group_id, "error_code": await _delete(group_id, context)}
            for group_id in dict.fromkeys(request.groups_names)
        ]
    }


async def _delete(group_id: str, context: RequestContext) -> ErrorCode:
    if not context.is_authorized(AclOperation.delete, ResourceType.group, group_id):
        return ErrorCode.group_authorization_failed
    try:
        await context.services.groups.delete_group(group_id)
    except KafkaError as error:
        return error.code
    return ErrorCode.none
