"""ListTransactions: the transactional ids that this broker coordinates, filtered (KIP-664, KIP-994, KIP-1152)."""

import asyncio
from typing import Any, Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.name_regex import InvalidRegexError, NameRegex
from headwater.logtier.security.operations import AclOperation, ResourceType
from headwater.logtier.transaction.metadata import STATES_BY_TITLE, TransactionMetadata

API_KEY = 66
VERSIONS = (0, 2)

_ANY_DURATION: Final = -1


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """List the ids that match the filters and that the client may describe.

    An expression is matched in turns of the event loop: other transactions may begin and end meanwhile.
    """
    wanted_states = set(request.state_filters)
    wanted_producers = set(request.producer_id_filters)
    duration_ms = getattr(request, "duration_filter", _ANY_DURATION)
    now_ms = context.services.clock.now_ms()
    try:
        pattern = _compiled(getattr(request, "transactional_id_pattern", None))
        transactions = list(context.services.transactions.transactions())
    except KafkaError as error:
        return {"error_code": error.code, "unknown_state_filters": [], "transaction_states": []}

    def is_wanted(name: str, metadata: TransactionMetadata) -> bool:
        return (
            (not wanted_producers or metadata.producer_id in wanted_producers)
            and (not wanted_states or metadata.state.title in wanted_states)
            and (duration_ms < 0 or now_ms - metadata.start_ms > duration_ms)
            and context.is_authorized(AclOperation.describe, ResourceType.transactional_id, name, log_denied=False)
        )

    wanted = [(name, metadata) for name, metadata in transactions if is_wanted(name, metadata)]
    if pattern is not None:
        matched: set[str] = set()
        for part in pattern.turns([name for name, _ in wanted]):
            matched |= pattern.matching(part)
            await asyncio.sleep(0)
        wanted = [each for each in wanted if each[0] in matched]
    return {
        "error_code": ErrorCode.none,
        "unknown_state_filters": sorted(wanted_states - STATES_BY_TITLE.keys()),
        "transaction_states": [
            {
                "transactional_id": name,
                "producer_id": metadata.producer_id,
                "transaction_state": metadata.state.title,
            }
            for name, metadata in wanted
        ],
    }


def _compiled(pattern: str | None) -> NameRegex | None:
    if not pattern:
        return None
    try:
        return NameRegex(pattern)
    except InvalidRegexError as error:
        raise KafkaError(ErrorCode.invalid_regular_expression, str(error)) from error
