"""The common part of the four delegation token APIs, which are not supported and respond as Kafka without tokens."""

from typing import Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.sasl_session import ANONYMOUS

NEVER: Final = -1
"""The timestamps of a token that does not exist."""


def refusal(context: RequestContext) -> ErrorCode:
    """Return the error: the client has not authenticated, or tokens are not enabled."""
    protocol = context.listener.protocol
    if protocol == "PLAINTEXT" or (protocol == "SSL" and context.principal == ANONYMOUS):
        return ErrorCode.delegation_token_request_not_allowed
    return ErrorCode.delegation_token_auth_disabled
