"""ExpireDelegationToken: a token is valid no longer (KIP-48). There are none here."""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.security.delegation_tokens import NEVER, refusal

API_KEY = 40
VERSIONS = (1, 2)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:  # noqa: ARG001
    """Refuse."""
    return {"error_code": refusal(context), "expiry_timestamp": NEVER}
