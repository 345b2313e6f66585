"""JoinGroup: joins a group's next generation. The response waits until all members have joined, or for the timeout."""

from typing import Any

from headwater.logtier.group.events import Join
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.messages import milliseconds
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 11
VERSIONS = (0, 9)

#: A dynamic member must join again with the id assigned to it (KIP-394).
_MEMBER_ID_REQUIRED_FROM = 4
_NULLABLE_PROTOCOL_FROM = 7
#: A returning static leader skips the assignment (KIP-814).
_SKIP_ASSIGNMENT_FROM = 9


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Join, and wait for the generation."""
    version = context.api_version
    if not context.is_authorized(AclOperation.read, ResourceType.group, request.group_id):
        return {
            "error_code": ErrorCode.group_authorization_failed,
            "generation_id": -1,
            "protocol_name": None if version >= _NULLABLE_PROTOCOL_FROM else "",
            "leader": "",
            "member_id": "",
            "members": [],
        }
    session_timeout_ms = milliseconds(request.session_timeout)
    result = await context.services.groups.join(
        request.group_id,
        Join(
            token=0,
            member_id=request.member_id,
            new_member_id="",
            group_instance_id=getattr(request, "group_instance_id", None),
            client_id=context.client_id or "",
            # Java's format of an address, shown by tools that describe groups.
            client_host=f"/{context.client_host}",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=milliseconds(request.rebalance_timeout) if version >= 1 else session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            requires_known_member_id=version >= _MEMBER_ID_REQUIRED_FROM,
            supports_skipping_assignment=version >= _SKIP_ASSIGNMENT_FROM,
            reason=getattr(request, "reason", None) or "",
        ),
    )
    protocol_name = result.protocol_name
    return {
        "error_code": result.error,
        "generation_id": result.generation_id,
        "protocol_type": result.protocol_type,
        "protocol_name": protocol_name if protocol_name is not None or version >= _NULLABLE_PROTOCOL_FROM else "",
        "leader": result.leader,
        "skip_assignment": result.skip_assignment and result.error is ErrorCode.none,
        "member_id": result.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "metadata": member.metadata,
            }
            for member in result.members
        ],
    }
