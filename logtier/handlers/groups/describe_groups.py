"""DescribeGroups: state, protocol and members of groups."""

from typing import Any

from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.events import GroupState
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.security.authorized_operations import NOT_ASKED, authorized_operations
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 15
VERSIONS = (0, 6)

#: From this version on a missing group is an error and not a dead group (KIP-1043).
_NOT_FOUND_FROM = 6


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Describe each group separately."""
    asked = getattr(request, "include_authorized_operations", False)
    answers = []
    for name in request.groups:
        answer = _describe(name, context)
        is_told = asked and answer["error_code"] is ErrorCode.none
        operations = authorized_operations(context, ResourceType.group, name) if is_told else NOT_ASKED
        answers.append({**answer, "authorized_operations": operations})
    return {"groups": answers}


def _describe(group_id: str, context: RequestContext) -> dict[str, Any]:
    if not context.is_authorized(AclOperation.describe, ResourceType.group, group_id):
        return _without_members(group_id, "", ErrorCode.group_authorization_failed, None)
    try:
        group = context.services.groups.group(group_id)
    except KafkaError as error:
        return _without_members(group_id, "", error.code, error.message)
    if isinstance(group, Group):
        return _with_members(group)
    if context.api_version >= _NOT_FOUND_FROM:
        what = "not found" if group is None else "is not a classic group"
        message = f"Group {group_id} {what}."
        return _without_members(group_id, GroupState.DEAD.value, ErrorCode.group_id_not_found, message)
    return _without_members(group_id, GroupState.DEAD.value, ErrorCode.none, None)


def _without_members(group_id: str, state: str, error: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "error_code": error,
        "error_message": message,
        "group_id": group_id,
        "group_state": state,
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }


def _with_members(group: Group) -> dict[str, Any]:
    # Only a stable group has a chosen protocol.
    is_stable = group.state is GroupState.STABLE
    protocol = (group.protocol_name or "") if is_stable else ""
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.protocols.get(protocol, b"") if is_stable else b"",
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }
