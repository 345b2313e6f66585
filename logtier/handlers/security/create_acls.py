"""CreateAcls: creates access control lists, each accepted or rejected separately."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.security.acl_messages import NO_AUTHORIZER, acl_binding
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 30
VERSIONS = (1, 3)
#: The controller answers.
IS_FORWARDED = True


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Create them, effective with the response; requires ALTER on the cluster."""
    if not context.is_authorized(AclOperation.alter, ResourceType.cluster):
        refusal = (ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")
    elif context.services.authorizer is None:
        refusal = (ErrorCode.security_disabled, NO_AUTHORIZER)
    else:
        errors = await context.services.controller.create_acls([acl_binding(each) for each in request.creations])
        return {
            "results": [
                {
                    "error_code": ErrorCode.none if error is None else error.code,
                    "error_message": "" if error is None else error.message,
                }
                for error in errors
            ]
        }
    return {"results": [{"error_code": refusal[0], "error_message": refusal[1]} for _ in request.creations]}
