"""CreateDelegationToken: creates a token that replaces a password (KIP-48); not supported."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.security.delegation_tokens import NEVER, refusal
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 38
VERSIONS = (1, 3)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Reject the request; a token for another user requires CREATE_TOKENS on that user first."""
    error = refusal(context)
    requester_type, _, requester_name = context.principal.partition(":")
    owner_type = getattr(request, "owner_principal_type", None)
    owner_name = getattr(request, "owner_principal_name", None)
    if not owner_name:
        owner_type, owner_name = requester_type, requester_name
    owner = f"{owner_type}:{owner_name}"
    if (
        error == ErrorCode.delegation_token_auth_disabled
        and owner != context.principal
        and not context.is_authorized(AclOperation.create_tokens, ResourceType.user, owner)
    ):
        error = ErrorCode.delegation_token_authorization_failed
    return {
        "error_code": error,
        "principal_type": owner_type or "",
        "principal_name": owner_name,
        "token_requester_principal_type": requester_type,
        "token_requester_principal_name": requester_name,
        "issue_timestamp": NEVER,
        "expiry_timestamp": NEVER,
        "max_timestamp": NEVER,
        "token_id": "",
        "hmac": b"",
    }
