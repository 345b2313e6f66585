"""The interface that handlers use for authorization."""

from typing import Protocol

from headwater.logtier.security.operations import AclOperation, ResourceType


class Authorizer(Protocol):
    """Decides whether a principal may perform an operation."""

    def is_authorized(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether `principal` (`User:alice`), connected from `host`, may perform the operation."""

    def is_authorized_for_any(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether the principal may perform the operation on at least one resource of this type."""
