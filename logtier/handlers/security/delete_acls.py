"""DeleteAcls: deletes the access control lists that match filters."""

from typing import Any

from headwater.logtier.controller.acl_state import AclDeletion
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.security.acl_messages import NO_AUTHORIZER, acl_filter
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 31
VERSIONS = (1, 3)
#: The controller answers.
IS_FORWARDED = True


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Delete and list them; requires ALTER on the cluster."""
    if not context.is_authorized(AclOperation.alter, ResourceType.cluster):
        refusal = KafkaError(ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")
    elif context.services.authorizer is None:
        refusal = KafkaError(ErrorCode.security_disabled, NO_AUTHORIZER)
    else:
        deletions = await context.services.controller.delete_acls([acl_filter(each) for each in request.filters])
        return {"filter_results": [_result(deletion) for deletion in deletions]}
    return {"filter_results": [_result(AclDeletion(error=refusal)) for _ in request.filters]}


def _result(deletion: AclDeletion) -> dict[str, Any]:
    error = deletion.error
    return {
        "error_code": ErrorCode.none if error is None else error.code,
        "error_message": None if error is None else error.message,
        "matching_acls": [
            {
                "error_code": ErrorCode.none,
                "error_message": None,
                "resource_type": binding.resource_type,
                "resource_name": binding.resource_name,
                "pattern_type": binding.pattern_type,
                "principal": binding.principal,
                "host": binding.host,
                "operation": binding.operation,
                "permission_type": binding.permission,
            }
            for binding in deletion.deleted
        ],
    }
