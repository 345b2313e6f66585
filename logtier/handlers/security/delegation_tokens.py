"""What the four APIs of delegation tokens have in common: there are none here, and who asks is told as by Kafka."""

from typing import Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.sasl_session import ANONYMOUS

NEVER: Final = -1
"""The time of what there is not."""


def refusal(context: RequestContext) -> ErrorCode:
    """Why there is no token: the client has not authenticated, or tokens are not enabled."""
    protocol = context.listener.protocol
    if protocol == "PLAINTEXT" or (protocol == "SSL" and context.principal == ANONYMOUS):
        return ErrorCode.delegation_token_request_not_allowed
    return ErrorCode.delegation_token_auth_disabled
