"""ListGroups: the groups that this broker coordinates, filtered by state (KIP-518) and type (KIP-848)."""

from typing import Any

from logtier.handlers.context import RequestContext
from logtier.protocol.errors import ErrorCode, KafkaError

API_KEY = 16
VERSIONS = (0, 5)

_TYPE = "classic"


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """List what matches; an empty filter matches all, case does not count."""
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    try:
        groups = context.services.groups.groups()
    except KafkaError as error:
        return {"error_code": error.code, "groups": []}
    return {
        "error_code": ErrorCode.none,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state.value,
                "group_type": _TYPE,
            }
            for group in groups
            if (not states or group.state.value.lower() in states) and (not types or _TYPE in types)
        ],
    }
