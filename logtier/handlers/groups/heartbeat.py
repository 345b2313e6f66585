"""Heartbeat: extends a group member's session and reports whether it must join again."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 12
VERSIONS = (0, 4)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Extend the member's session."""
    if not context.is_authorized(AclOperation.read, ResourceType.group, request.group_id):
        return {"error_code": ErrorCode.group_authorization_failed}
    error = context.services.groups.heartbeat(
        request.group_id, request.member_id, getattr(request, "group_instance_id", None), request.generation_id
    )
    return {"error_code": error}
