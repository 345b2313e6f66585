"""Authorization of access to configs."""

from collections.abc import Mapping
from typing import Final

from headwater.logtier.controller.commands import ConfigResourceType
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import CLUSTER_NAME, AclOperation, ResourceType

_OF_CLUSTER: Final = (ResourceType.cluster, ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")
_RULES: Final[Mapping[int, tuple[ResourceType, ErrorCode, str]]] = {
    ConfigResourceType.TOPIC: (
        ResourceType.topic,
        ErrorCode.topic_authorization_failed,
        "Topic authorization failed.",
    ),
    ConfigResourceType.GROUP: (
        ResourceType.group,
        ErrorCode.group_authorization_failed,
        "Group authorization failed.",
    ),
    ConfigResourceType.BROKER: _OF_CLUSTER,
    ConfigResourceType.BROKER_LOGGER: _OF_CLUSTER,
    ConfigResourceType.CLIENT_METRICS: _OF_CLUSTER,
}


def config_denial(
    operation: AclOperation, resource_type: int, resource_name: str, context: RequestContext
) -> KafkaError | None:
    """Return the error if the client may not access the configs of a resource; None if it may, or for unknown types."""
    rule = _RULES.get(resource_type)
    if rule is None:
        return None
    kind, code, message = rule
    name = CLUSTER_NAME if kind is ResourceType.cluster else resource_name
    return None if context.is_authorized(operation, kind, name) else KafkaError(code, message)
