"""The authorized operations of a client, as bits numbered by the protocol's operations (KIP-430)."""

from collections.abc import Mapping
from typing import Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.security.operations import CLUSTER_NAME, AclOperation, ResourceType

#: The operations of each type of resource.
_SUPPORTED: Final[Mapping[ResourceType, tuple[AclOperation, ...]]] = {
    ResourceType.topic: (
        AclOperation.read,
        AclOperation.write,
        AclOperation.create,
        AclOperation.delete,
        AclOperation.alter,
        AclOperation.describe,
        AclOperation.describe_configs,
        AclOperation.alter_configs,
    ),
    ResourceType.group: (
        AclOperation.read,
        AclOperation.delete,
        AclOperation.describe,
        AclOperation.describe_configs,
        AclOperation.alter_configs,
    ),
    ResourceType.cluster: (
        AclOperation.create,
        AclOperation.alter,
        AclOperation.describe,
        AclOperation.cluster_action,
        AclOperation.describe_configs,
        AclOperation.alter_configs,
        AclOperation.idempotent_write,
    ),
}

_ALL: Final = {kind: sum(1 << operation for operation in operations) for kind, operations in _SUPPORTED.items()}

NOT_ASKED: Final = -(2**31)
"""The value in a response if the request did not include the operations."""


def authorized_operations(context: RequestContext, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
    """Return the bits of the client's operations on a resource; no denials are logged."""
    if context.services.authorizer is None:
        return _ALL[resource_type]
    return sum(
        1 << operation
        for operation in _SUPPORTED[resource_type]
        if context.is_authorized(operation, resource_type, name, log_denied=False)
    )


def cluster_authorized_operations(context: RequestContext) -> int:
    """Return the bits for the cluster; 0 for a client without DESCRIBE on it."""
    if not context.is_authorized(AclOperation.describe, ResourceType.cluster):
        return 0
    return authorized_operations(context, ResourceType.cluster)
