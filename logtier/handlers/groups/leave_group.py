"""LeaveGroup: a member leaves, or (version 3 on) an administrator removes several members (KIP-345)."""

from typing import Any

from headwater.logtier.group.events import LeavingMember
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 13
VERSIONS = (0, 5)

_SEVERAL_FROM = 3


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Remove the members; each has its own result."""
    if not context.is_authorized(AclOperation.read, ResourceType.group, request.group_id):
        return {"error_code": ErrorCode.group_authorization_failed, "members": []}
    if context.api_version < _SEVERAL_FROM:
        members = [LeavingMember(request.member_id)]
    else:
        members = [
            LeavingMember(each.member_id, each.group_instance_id, getattr(each, "reason", None) or "")
            for each in request.members
        ]
    try:
        errors = await context.services.groups.leave(request.group_id, members)
    except KafkaError as error:
        return {"error_code": error.code, "members": []}
    if context.api_version < _SEVERAL_FROM:
        return {"error_code": errors[0]}
    return {
        "error_code": ErrorCode.none,
        "members": [
            {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "error_code": error}
            for member, error in zip(members, errors, strict=True)
        ],
    }
