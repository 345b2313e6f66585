"""ListGroups: the groups that this broker coordinates, filtered by state (KIP-518) and type (KIP-848)."""

from typing import Any

from headwater.logtier.group.registry import group_state, group_type
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 16
VERSIONS = (0, 5)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """List the matching groups; an empty filter matches all, case is ignored."""
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    try:
        groups = context.services.groups.groups()
    except KafkaError as error:
        return {"error_code": error.code, "groups": []}
    if not context.is_authorized(AclOperation.describe, ResourceType.cluster, log_denied=False):
        groups = [
            group
            for group in groups
            if context.is_authorized(AclOperation.describe, ResourceType.group, group.group_id, log_denied=False)
        ]
    described = [(group, group_state(group), group_type(group)) for group in groups]
    return {
        "error_code": ErrorCode.none,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": state,
                "group_type": kind,
            }
            for group, state, kind in described
            if (not states or state.lower() in states) and (not types or kind in types)
        ],
    }
