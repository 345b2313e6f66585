"""The levels of this broker's loggers, as configs of the resource type BROKER_LOGGER (KIP-412, KIP-1011).

They are Python's loggers with Kafka's level names. A level set here applies until the broker stops.
"""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from headwater.logtier.controller.commands import ConfigChange, ConfigOperation, ConfigOperationType
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

#: The name of the root logger.
ROOT: Final = "root"

LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "TRACE": logging.DEBUG // 2,
        "DEBUG": logging.DEBUG,
        "INFO": logging.INFO,
        "WARN": logging.WARNING,
        "ERROR": logging.ERROR,
        "FATAL": logging.CRITICAL,
    }
)

_SOURCE_BROKER_LOGGER: Final = 6
_TYPE_UNKNOWN: Final = 0
_VERBS: Final = {ConfigOperationType.APPEND: "APPEND", ConfigOperationType.SUBTRACT: "SUBTRACT"}


def describe_loggers(broker: str, node_id: int, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return the loggers in the format of DescribeConfigs, restricted to existing ones of `names` if given.

    Raises:
        KafkaError: invalid_request if `broker` is not this broker.
    """
    if not broker:
        raise KafkaError(ErrorCode.invalid_request, "Broker id must not be empty")
    _check_broker(broker, node_id)
    wanted = set(names or ())
    return [
        {
            "name": name,
            "value": level_name(logger.getEffectiveLevel()),
            "read_only": False,
            "config_source": _SOURCE_BROKER_LOGGER,
            "is_sensitive": False,
            "synonyms": [],
            "config_type": _TYPE_UNKNOWN,
            "documentation": None,
        }
        for name, logger in _loggers().items()
        if not wanted or name in wanted
    ]


def alter_loggers(change: ConfigChange, node_id: int, *, validate_only: bool) -> None:
    """Set levels, or let loggers inherit their level again (DELETE): all changes of a request or none.

    Raises:
        KafkaError: invalid_request, invalid_config.
    """
    _check_broker(change.resource_name, node_id)
    loggers = _loggers()
    names = [operation.name for operation in change.operations]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")
    levels = [(loggers.get(operation.name), _level(operation, loggers)) for operation in change.operations]
    if not validate_only:
        for logger, level in levels:
            assert logger is not None, "checked by _level"
            logger.setLevel(level)


def level_name(level: int) -> str:
    """Return Kafka's name of the nearest level that is at least as strict.

    >>> level_name(logging.WARNING), level_name(25), level_name(1)
    ('WARN', 'WARN', 'TRACE')
    """
    return next((name for name, known in LEVELS.items() if known >= level), "FATAL")


def _level(operation: ConfigOperation, loggers: Mapping[str, logging.Logger]) -> int:
    name = operation.name
    if operation.type in _VERBS:
        verb = _VERBS[ConfigOperationType(operation.type)]
        raise KafkaError(ErrorCode.invalid_request, f"{verb} operation is not allowed for the BROKER_LOGGER resource")
    if operation.type not in (ConfigOperationType.SET, ConfigOperationType.DELETE):
        raise KafkaError(ErrorCode.invalid_request, f"Config operation {operation.type} is unknown.")
    if name not in loggers:
        raise KafkaError(ErrorCode.invalid_config, f"Logger {name[:200]} does not exist!")
    if operation.type == ConfigOperationType.DELETE:
        if name == ROOT:
            raise KafkaError(ErrorCode.invalid_request, "Removing the log level of the root logger is not allowed")
        return logging.NOTSET
    wanted = operation.value or ""
    level = LEVELS.get(wanted)
    if level is None:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"Cannot set the log level of {name} to {wanted[:200]} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}",
        )
    return level


def _loggers() -> dict[str, logging.Logger]:
    """Return the root logger and every named logger."""
    found = {
        name: logger for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)
    }
    return {ROOT: logging.root, **dict(sorted(found.items()))}


def _check_broker(broker: str, node_id: int) -> None:
    if not (broker.isascii() and broker.removeprefix("-").isdigit()):
        raise KafkaError(ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {broker[:64]}")
    if broker != str(node_id):
        raise KafkaError(
            ErrorCode.invalid_request, f"Unexpected broker id, expected {node_id} but received {broker[:64]}"
        )
