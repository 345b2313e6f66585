"""SyncGroup: returns a member's assignment; the leader sends the assignments. The response waits for the leader."""

from typing import Any

from headwater.logtier.group.events import Sync
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 14
VERSIONS = (0, 5)

#: From this version on the member sends the protocol with which it joined (KIP-559).
_PROTOCOL_FROM = 5


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Wait for the assignment."""
    protocol_type = getattr(request, "protocol_type", None)
    protocol_name = getattr(request, "protocol_name", None)
    if context.api_version >= _PROTOCOL_FROM and (protocol_type is None or protocol_name is None):
        return {"error_code": ErrorCode.inconsistent_group_protocol, "assignment": b""}
    if not context.is_authorized(AclOperation.read, ResourceType.group, request.group_id):
        return {"error_code": ErrorCode.group_authorization_failed, "assignment": b""}
    result = await context.services.groups.sync(
        request.group_id,
        Sync(
            token=0,
            member_id=request.member_id,
            group_instance_id=getattr(request, "group_instance_id", None),
            generation_id=request.generation_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments={each.member_id: each.assignment for each in request.assignments},
        ),
    )
    return {
        "error_code": result.error,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol_name,
        "assignment": result.assignment,
    }
