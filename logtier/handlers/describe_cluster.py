"""DescribeCluster: id, brokers and controller (KIP-700); nothing of topics."""

from typing import Any, Final

from logtier.handlers.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED
from logtier.handlers.context import RequestContext
from logtier.protocol.errors import ErrorCode

API_KEY = 60
VERSIONS = (0, 2)

_BROKERS: Final = 1


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Describe the cluster from the image. Its endpoints are the brokers': there are no separate controllers."""
    image = context.services.metadata.image
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    refused = endpoint_type != _BROKERS
    return {
        "error_code": ErrorCode.unsupported_endpoint_type if refused else ErrorCode.none,
        "error_message": "This listener serves brokers, not controllers." if refused else None,
        "endpoint_type": endpoint_type,
        "cluster_id": image.cluster_id,
        "controller_id": image.controller_id,
        "brokers": []
        if refused
        else [
            {"broker_id": broker.id, "host": broker.host, "port": broker.port, "rack": broker.rack, "is_fenced": False}
            for broker in image.brokers.values()
        ],
        "cluster_authorized_operations": CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    }
