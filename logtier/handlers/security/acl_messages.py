"""Access control lists and filters as the three APIs of ACLs send them."""

from typing import Any, Final

from headwater.logtier.security.acls import AclBinding, AclFilter, PatternType, PermissionType, from_code
from headwater.logtier.security.operations import AclOperation, ResourceType

NO_AUTHORIZER: Final = "No Authorizer is configured."


def acl_filter(sent: Any) -> AclFilter:
    """The filter of a DescribeAcls request, or one of those of DeleteAcls."""
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
    """One of the bindings of a CreateAcls request; what it says need not make sense."""
    return AclBinding(
        from_code(ResourceType, sent.resource_type),
        sent.resource_name,
        from_code(PatternType, sent.resource_pattern_type),
        sent.principal,
        sent.host,
        from_code(AclOperation, sent.operation),
        from_code(PermissionType, sent.permission_type),
    )
