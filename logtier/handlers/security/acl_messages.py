"""Access control lists and filters in the messages of the three ACL APIs."""

from typing import Any, Final

from headwater.logtier.security.acls import AclBinding, AclFilter, PatternType, PermissionType, from_code
from headwater.logtier.security.operations import AclOperation, ResourceType

NO_AUTHORIZER: Final = "No Authorizer is configured."


def acl_filter(sent: Any) -> AclFilter:
    """Return the filter of a DescribeAcls request, or of an element of DeleteAcls."""
    return AclFilter(
        from_code(ResourceType, sent.resource_type_filter),
        sent.resource_name_filter,
        from_code(PatternType, sent.pattern_type_filter),
        sent.principal_filter,
        sent.host_filter,
        from_code(AclOperation, sent.operation),
        from_code(PermissionType, sent.permission_type),
    )


def acl_binding(sent: Any) -> AclBinding:
    """Return a binding of a CreateAcls request; its values may be invalid."""
    return AclBinding(
        from_code(ResourceType, sent.resource_type),
        sent.resource_name,
        from_code(PatternType, sent.resource_pattern_type),
        sent.principal,
        sent.host,
        from_code(AclOperation, sent.operation),
        from_code(PermissionType, sent.permission_type),
    )
