"""AlterConfigs: replaces all configs of topics and brokers; configs not listed revert to their defaults.

Superseded by IncrementalAlterConfigs; older tools still send it.
"""

from typing import Any

from headwater.logtier.controller.commands import ConfigChange, ConfigOperation, ConfigOperationType
from headwater.logtier.handlers.configs.incremental_alter_configs import alter_authorized, resource_response
from headwater.logtier.handlers.context import RequestContext

API_KEY = 33
VERSIONS = (0, 2)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Change each resource completely or not at all."""
    changes = [
        ConfigChange(
            resource.resource_type,
            resource.resource_name,
            [ConfigOperation(config.name, ConfigOperationType.SET, config.value) for config in resource.configs],
            replace_all=True,
        )
        for resource in request.resources
    ]
    results = await alter_authorized(changes, context, validate_only=request.validate_only)
    return {"responses": [resource_response(result) for result in results]}
