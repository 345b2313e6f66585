"""DescribeUserScramCredentials: users with SCRAM credentials and their iterations (KIP-554); no secrets."""

from collections import Counter
from typing import Any

from headwater.logtier.controller.scram_state import SCRAM_MECHANISMS
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 50
VERSIONS = (0, 0)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Describe the listed users, or all users; requires DESCRIBE on the cluster."""
    asked = Counter(user.name for user in request.users or ())
    if not context.is_authorized(AclOperation.describe, ResourceType.cluster):
        message = "Cluster authorization failed."
        code = ErrorCode.cluster_authorization_failed
        return {
            "error_code": code,
            "error_message": message,
            "results": [_result(user, code, message) for user in asked],
        }
    known = context.services.metadata.image.scram_credentials
    results = []
    for user, times in (asked or dict.fromkeys(known, 1)).items():
        credentials = known.get(user, {})
        if times > 1:
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            results.append(_result(user, ErrorCode.duplicate_resource, message))
        elif not credentials:
            message = f"Attempt to describe a user credential that does not exist: {user}"
            results.append(_result(user, ErrorCode.resource_not_found, message))
        else:
            infos = [
                {"mechanism": number, "iterations": credentials[mechanism].iterations}
                for number, mechanism in SCRAM_MECHANISMS.items()
                if mechanism in credentials
            ]
            results.append({**_result(user, ErrorCode.none, ""), "credential_infos": infos})
    return {"error_code": ErrorCode.none, "error_message": "", "results": results}


def _result(user: str, code: ErrorCode, message: str) -> dict[str, Any]:
    return {"user": user, "error_code": code, "error_message": message, "credential_infos": []}
