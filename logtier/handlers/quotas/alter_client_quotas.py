"""AlterClientQuotas: sets and removes quotas, each entity separately (KIP-546)."""

from typing import Any

from headwater.logtier.config.quotas import entity_of
from headwater.logtier.controller.quota_state import QuotaAlteration
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation

API_KEY = 49
VERSIONS = (0, 1)
#: The controller answers.
IS_FORWARDED = True


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Change quotas, from the next request of each client on; requires ALTER_CONFIGS on the cluster."""
    errors: list[KafkaError | None]
    try:
        context.require_cluster(AclOperation.alter_configs)
    except KafkaError as error:
        errors = [error for _ in request.entries]
    else:
        errors = await _alter(request, context)
    return {
        "entries": [
            {
                "error_code": ErrorCode.none if error is None else error.code,
                "error_message": None if error is None else error.message,
                "entity": [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity],
            }
            for entry, error in zip(request.entries, errors, strict=True)
        ]
    }


async def _alter(request: Any, context: RequestContext) -> list[KafkaError | None]:
    errors: list[KafkaError | None] = []
    alterations = []
    places = []
    for place, entry in enumerate(request.entries):
        parts = {part.entity_type: part.entity_name for part in entry.entity}
        errors.append(None)
        if len(parts) != len(entry.entity):
            errors[place] = KafkaError(
                ErrorCode.invalid_request, "Invalid client quota entity, an entity type is listed twice"
            )
            continue
        places.append(place)
        changes = [(operation.key, None if operation.remove else operation.value) for operation in entry.ops]
        alterations.append(QuotaAlteration(entity_of(parts), changes))
    results = await context.services.controller.alter_client_quotas(alterations, validate_only=request.validate_only)
    for place, result in zip(places, results, strict=True):
        errors[place] = result
    return errors
