"""ListPartitionReassignments: the moves of partitions that are under way (KIP-455); in a cluster of one, none."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation

API_KEY = 46
VERSIONS = (0, 0)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:  # noqa: ARG001 (whatever is asked for: none)
    """No partition is being moved; one that does not exist is not being moved either, as in Kafka."""
    context.require_cluster(AclOperation.describe)
    return {"error_code": ErrorCode.none, "error_message": None, "topics": []}
