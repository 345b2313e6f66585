"""DescribeDelegationToken: lists tokens by owner (KIP-48); not supported."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.security.delegation_tokens import refusal

API_KEY = 41
VERSIONS = (1, 3)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:  # noqa: ARG001
    """Reject the request."""
    return {"error_code": refusal(context), "tokens": []}
