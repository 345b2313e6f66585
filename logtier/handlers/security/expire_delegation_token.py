"""ExpireDelegationToken: ends the validity of a token (KIP-48); not supported."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.security.delegation_tokens import NEVER, refusal

API_KEY = 40
VERSIONS = (1, 2)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:  # noqa: ARG001
    """Reject the request."""
    return {"error_code": refusal(context), "expiry_timestamp": NEVER}
