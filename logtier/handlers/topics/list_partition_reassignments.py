"""ListPartitionReassignments: the running moves of partitions (KIP-455); none in a single-node cluster."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation

API_KEY = 46
VERSIONS = (0, 0)
#: The controller answers.
IS_FORWARDED = True


def handle(request: Any, context: RequestContext) -> dict[str, Any]:  # noqa: ARG001 (the result is always empty)
    """Return no partitions; as in Kafka, unknown partitions are no error."""
    context.require_cluster(AclOperation.describe)
    return {"error_code": ErrorCode.none, "error_message": None, "topics": []}
