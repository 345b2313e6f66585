"""ListConfigResources: the resources with configs (KIP-714, KIP-1142); version 0 lists client metrics only."""

from collections.abc import Iterator
from typing import Any

from headwater.logtier.controller.commands import ConfigResourceType
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation

API_KEY = 74
VERSIONS = (0, 1)

_LISTED = (
    ConfigResourceType.TOPIC,
    ConfigResourceType.BROKER,
    ConfigResourceType.BROKER_LOGGER,
    ConfigResourceType.CLIENT_METRICS,
    ConfigResourceType.GROUP,
)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """List the resources of the requested types, or of all types."""
    context.require_cluster(AclOperation.describe_configs)
    wanted = (ConfigResourceType.CLIENT_METRICS,)
    if context.api_version > 0:
        wanted = tuple(dict.fromkeys(request.resource_types)) or _LISTED
    if any(kind not in _LISTED for kind in wanted):
        return {"error_code": ErrorCode.unsupported_version, "config_resources": []}
    return {
        "error_code": ErrorCode.none,
        "config_resources": [
            {"resource_name": name, "resource_type": kind} for kind in wanted for name in _names(kind, context)
        ],
    }


def _names(kind: int, context: RequestContext) -> Iterator[str]:
    image = context.services.metadata.image
    if kind == ConfigResourceType.TOPIC:
        yield from image.topics
    elif kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
        yield from map(str, image.brokers)
    elif kind == ConfigResourceType.GROUP:
        yield from image.group_configs
