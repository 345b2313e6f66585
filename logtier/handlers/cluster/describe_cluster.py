"""DescribeCluster: cluster id, brokers and controller (KIP-700), without topics."""

from typing import Any, Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.security.authorized_operations import NOT_ASKED, cluster_authorized_operations
from headwater.logtier.protocol.errors import ErrorCode

API_KEY = 60
VERSIONS = (0, 2)

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Describe the cluster from the image. Only broker endpoints exist: there are no separate controllers."""
    image = context.services.metadata.image
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    if endpoint_type == _CONTROLLERS:
        return _refused(
            ErrorCode.mismatched_endpoint_type,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    if endpoint_type != _BROKERS:
        return _refused(ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}")
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": endpoint_type,
        "cluster_id": image.cluster_id,
        "controller_id": image.controller_id,
        "brokers": [
            {"broker_id": broker.id, "host": host, "port": port, "rack": broker.rack, "is_fenced": False}
            for broker in image.brokers.values()
            for host, port in (broker.reached_by(context.listener.name),)
        ],
        "cluster_authorized_operations": cluster_authorized_operations(context)
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    }


def _refused(code: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "controller_id": -1,
        "brokers": [],
        "cluster_authorized_operations": NOT_ASKED,
    }
