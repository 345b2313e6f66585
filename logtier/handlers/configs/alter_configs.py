"""AlterConfigs: replaces all configs of topics and brokers; configs not listed revert to their defaults.

Superseded by IncrementalAlterConfigs; older tools still send it.
"""

from typing import Any

from headwater.logtier.controller.commands import ConfigChange, ConfigOperation, ConfigOperationType
from headwater.logtier.handlers.configs.configs_of_this_broker import SendRest, answer_divided
from headwater.logtier.handlers.configs.incremental_alter_configs import alter_authorized, resource_response
from headwater.logtier.handlers.context import RequestContext

API_KEY = 33
VERSIONS = (0, 2)
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
            [ConfigOperation(config.name, ConfigOperationType.SET, config.value) for config in resource.configs],
            replace_all=True,
        )
        for resource in request.resources
    ]
