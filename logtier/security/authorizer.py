"""The question every handler asks before it acts."""

from typing import Protocol

from headwater.logtier.security.operations import AclOperation, ResourceType


class Authorizer(Protocol):
    """Decides whether a principal may do something."""

    def is_authorized(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Tell whether `principal` (`User:alice`), connected from `host`, may do it."""

    def is_authorized_for_any(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Tell whether there is a resource of this type, by whatever name, on which the principal may do it."""
