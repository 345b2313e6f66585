"""DescribeDelegationToken: the tokens of their owners (KIP-48). There are none here."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.security.delegation_tokens import refusal

API_KEY = 41
VERSIONS = (1, 3)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:  # noqa: ARG001
    """Refuse."""
    return {"error_code": refusal(context), "tokens": []}
