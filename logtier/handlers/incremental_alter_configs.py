"""IncrementalAlterConfigs: set, delete, append to and subtract from configs of topics and brokers (KIP-339)."""

from typing import Any

from logtier.controller.commands import ConfigChange, ConfigOperation, ConfigResult
from logtier.handlers.context import RequestContext
from logtier.protocol.errors import ErrorCode

API_KEY = 44
VERSIONS = (0, 1)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Change each resource as a whole or not at all."""
    changes = [
        ConfigChange(
            resource.resource_type,
            resource.resource_name,
            [ConfigOperation(config.name, config.config_operation, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    results = await context.services.controller.alter_configs(changes, validate_only=request.validate_only)
    return {"responses": [resource_response(result) for result in results]}


def resource_response(result: ConfigResult) -> dict[str, Any]:
    """One resource's part of the answer; AlterConfigs has the same."""
    return {
        "error_code": ErrorCode.none if result.error is None else result.error.code,
        "error_message": None if result.error is None else result.error.message,
        "resource_type": result.resource_type,
        "resource_name": result.resource_name,
    }
