"""DescribeClientQuotas: lists the quotas of the entities that match a filter (KIP-546)."""

from collections.abc import Mapping
from typing import Any, Final

from headwater.logtier.config.quotas import CLIENT_ID, ENTITY_TYPES, IP, USER, ClientQuota
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation

API_KEY = 48
VERSIONS = (0, 1)

_EXACT: Final = 0
_DEFAULT: Final = 1
_SPECIFIED: Final = 2


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """List the matches; requires DESCRIBE_CONFIGS on the cluster."""
    try:
        context.require_cluster(AclOperation.describe_configs)
        exact, of_type = _filter(request)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message, "entries": None}
    found = [
        quota
        for quota in context.services.metadata.image.client_quotas.values()
        if _matches(quota, exact, of_type, strict=request.strict)
    ]
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "entries": [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in quota.entity],
                "values": [{"key": key, "value": value} for key, value in quota.values.items()],
            }
            for quota in found
        ],
    }


def _filter(request: Any) -> tuple[Mapping[str, str | None], set[str]]:
    """Return the requested names by type (None: the default), and the types that match any name."""
    exact: dict[str, str | None] = {}
    of_type: set[str] = set()
    for component in request.components:
        kind, match = component.entity_type, component.match
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in exact or kind in of_type:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.unsupported_version, f"Unsupported entity type {kind[:100]}")
        if component.match_type == _EXACT:
            if match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            exact[kind] = match
        elif component.match_type in (_DEFAULT, _SPECIFIED):
            if match is not None:
                name = "MATCH_TYPE_DEFAULT" if component.match_type == _DEFAULT else "MATCH_TYPE_SPECIFIED"
                raise _invalid(f"Request specified {name}, but also specified a match string.")
            if component.match_type == _DEFAULT:
                exact[kind] = None
            else:
                of_type.add(kind)
        else:
            raise _invalid(f"Unknown match type {component.match_type}")
    kinds = of_type | set(exact)
    if IP in kinds and kinds & {USER, CLIENT_ID}:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component."
        )
    return exact, of_type


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)


def _matches(quota: ClientQuota, exact: Mapping[str, str | None], of_type: set[str], *, strict: bool) -> bool:
    parts = dict(quota.entity)
    if strict and len(parts) != len(exact) + len(of_type):
        return False
    return of_type <= parts.keys() and all(kind in parts and parts[kind] == name for kind, name in exact.items())
