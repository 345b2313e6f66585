"""Changes of configs that concern the broker that receives them, in a cluster (KIP-226, KIP-412).

The levels of loggers are set by the broker itself. Its own configs are stored by the controller, which does not know
the broker's properties: the broker checks that they fit together, and the controller only that each is valid. Clients
therefore send both to the broker itself, and another broker refuses them.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headwater.logtier.controller.commands import ConfigChange, ConfigResourceType, ConfigResult
from headwater.logtier.controller.config_state import plan_alter_configs
from headwater.logtier.handlers.configs.broker_loggers import alter_loggers
from headwater.logtier.handlers.configs.config_authorization import config_denial
from headwater.logtier.handlers.context import EmbeddedContext, RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation

_OF_ONE_BROKER = (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)


SendRest = Callable[[Any], Awaitable[Any]]
"""Forwards a decoded request to the controller, and returns its decoded response."""


async def answer_divided(
    request: Any, changes: Sequence[ConfigChange], context: RequestContext, send_rest: SendRest
) -> list[ConfigResult] | None:
    """Answer a request that is not the controller's alone; None if it is.

    Args:
        changes: One for each resource of the request, in the same order.
    """
    if not any(change.resource_type in _OF_ONE_BROKER for change in changes):
        return None
    divided = divide(changes, context, validate_only=request.validate_only)
    if not divided.results:
        return None
    if not divided.remaining:
        return divided.results
    kept = tuple(
        resource
        for resource, change in zip(request.resources, changes, strict=True)
        if any(change is each for each in divided.remaining)
    )
    response = await send_rest(replace(request, resources=kept))
    return [*divided.results, *(_result(each) for each in response.responses)]


def _result(response: Any) -> ConfigResult:
    code = ErrorCode(response.error_code)
    error = None if code is ErrorCode.none else KafkaError(code, response.error_message or "")
    return ConfigResult(int(response.resource_type), response.resource_name, error)


class DividedChanges(NamedTuple):
    """Changes with the results of those that this broker has answered."""

    results: list[ConfigResult]
    remaining: list[ConfigChange]


def divide(changes: Iterable[ConfigChange], context: RequestContext, *, validate_only: bool) -> DividedChanges:
    """Answer what concerns this broker alone, or cannot be changed through it; the rest is the controller's."""
    divided = DividedChanges([], [])
    for change in changes:
        resource = (change.resource_type, change.resource_name)
        try:
            denial = config_denial(AclOperation.alter_configs, *resource, context) or misdirected(change, context)
            if denial is not None:
                raise denial
            if change.resource_type == ConfigResourceType.BROKER_LOGGER and not change.replace_all:
                alter_loggers(change, context.services.metadata.config.node_id, validate_only=validate_only)
                divided.results.append(ConfigResult(*resource))
                continue
            _check_own_configs(change, context)
        except KafkaError as error:
            divided.results.append(ConfigResult(*resource, error))
        else:
            divided.remaining.append(change)
    return divided


def misdirected(change: ConfigChange, context: RequestContext) -> KafkaError | None:
    """Return the error of a change of another broker's configs, which only that broker can check."""
    if change.resource_type != ConfigResourceType.BROKER or not change.resource_name:
        return None
    if context.services.forwarding is None or isinstance(context, EmbeddedContext):
        return None  # a single node, or the broker that forwarded the change has checked it
    node_id = context.services.metadata.config.node_id
    if change.resource_name == str(node_id):
        return None
    return KafkaError(
        ErrorCode.invalid_request,
        f"Unexpected broker id, expected {node_id} or empty string, but received {change.resource_name[:64]}",
    )


def _check_own_configs(change: ConfigChange, context: RequestContext) -> None:
    metadata = context.services.metadata
    if change.resource_type != ConfigResourceType.BROKER or not change.resource_name:
        return
    (result,) = plan_alter_configs(metadata.image, metadata.static_config, [change]).results
    if result.error is not None:
        raise result.error
