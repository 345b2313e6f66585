"""IncrementalAlterConfigs: sets, deletes, appends to and subtracts from configs of topics and brokers (KIP-339)."""

from collections.abc import Sequence
from typing import Any

from headwater.logtier.controller.commands import ConfigChange, ConfigOperation, ConfigResourceType, ConfigResult
from headwater.logtier.handlers.configs.broker_loggers import alter_loggers
from headwater.logtier.handlers.configs.config_authorization import config_denial
from headwater.logtier.handlers.configs.configs_of_this_broker import SendRest, answer_divided, misdirected
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation

API_KEY = 44
VERSIONS = (0, 1)
#: The controller answers.
IS_FORWARDED = True


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Change each resource completely or not at all."""
    results = await alter_authorized(_changes(request), context, validate_only=request.validate_only)
    return {"responses": [resource_response(result) for result in results]}


async def handle_forwarded(request: Any, context: RequestContext, send_rest: SendRest) -> dict[str, Any] | None:
    """Answer what concerns this broker, and let the controller answer the rest; None if there is only that."""
    results = await answer_divided(request, _changes(request), context, send_rest)
    return None if results is None else {"responses": [resource_response(result) for result in results]}


def _changes(request: Any) -> list[ConfigChange]:
    return [
        ConfigChange(
            resource.resource_type,
            resource.resource_name,
            [ConfigOperation(config.name, config.config_operation, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]


async def alter_authorized(
    changes: Sequence[ConfigChange], context: RequestContext, *, validate_only: bool
) -> list[ConfigResult]:
    """Change the resources that the client may change; one result for each resource."""
    allowed = []
    altered_loggers = []
    denied: dict[tuple[int, str], ConfigResult] = {}
    for change in changes:
        denial = config_denial(
            AclOperation.alter_configs, change.resource_type, change.resource_name, context
        ) or misdirected(change, context)
        if denial is None and change.resource_type == ConfigResourceType.BROKER_LOGGER and not change.replace_all:
            altered_loggers.append(_alter_loggers(change, context, validate_only))
        elif denial is None:
            allowed.append(change)
        else:
            resource = (change.resource_type, change.resource_name)
            denied[resource] = ConfigResult(*resource, denial)
    results = await context.services.controller.alter_configs(allowed, validate_only=validate_only)
    return [*denied.values(), *altered_loggers, *results]


def _alter_loggers(change: ConfigChange, context: RequestContext, validate_only: bool) -> ConfigResult:
    error = None
    try:
        alter_loggers(change, context.services.metadata.config.node_id, validate_only=validate_only)
    except KafkaError as refusal:
        error = refusal
    return ConfigResult(change.resource_type, change.resource_name, error)


def resource_response(result: ConfigResult) -> dict[str, Any]:
    """Return the response for one resource, also used by AlterConfigs."""
    return {
        "error_code": ErrorCode.none if result.error is None else result.error.code,
        "error_message": None if result.error is None else result.error.message,
        "resource_type": result.resource_type,
        "resource_name": result.resource_name,
    }
