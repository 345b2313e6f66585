"""DescribeAcls: lists the access control lists that match a filter, by resource."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.security.acl_messages import NO_AUTHORIZER, acl_filter
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.acls import AclBinding, PatternType
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 29
VERSIONS = (1, 3)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """List the matches; requires DESCRIBE on the cluster."""
    if not context.is_authorized(AclOperation.describe, ResourceType.cluster):
        return _refused(ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")
    if context.services.authorizer is None:
        return _refused(ErrorCode.security_disabled, NO_AUTHORIZER)
    wanted = acl_filter(request)
    resources: dict[tuple[ResourceType, str, PatternType], list[AclBinding]] = {}
    for binding in context.services.metadata.image.acls.values():
        if wanted.matches(binding):
            resource = (binding.resource_type, binding.resource_name, binding.pattern_type)
            resources.setdefault(resource, []).append(binding)
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "resources": [
            {
                "resource_type": resource_type,
                "resource_name": name,
                "pattern_type": pattern_type,
                "acls": [
                    {
                        "principal": binding.principal,
                        "host": binding.host,
                        "operation": binding.operation,
                        "permission_type": binding.permission,
                    }
                    for binding in bindings
                ],
            }
            for (resource_type, name, pattern_type), bindings in resources.items()
        ],
    }


def _refused(code: ErrorCode, message: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "resources": []}
