"""Levels of loggers as configs of the resource type BROKER_LOGGER."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from headwater.logtier.controller.commands import ConfigChange, ConfigOperation, ConfigOperationType
from headwater.logtier.handlers.configs.broker_loggers import alter_loggers, describe_loggers
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

NAME = "headwater.logtier.test.loggers"
SET, DELETE, APPEND = ConfigOperationType.SET, ConfigOperationType.DELETE, ConfigOperationType.APPEND


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger(NAME)
    yield logger
    logger.setLevel(logging.NOTSET)


def alter(*operations: tuple[str, int, str | None], broker: str = "1", validate_only: bool = False) -> None:
    change = ConfigChange(8, broker, [ConfigOperation(*operation) for operation in operations])
    alter_loggers(change, 1, validate_only=validate_only)


def level() -> str:
    [described] = describe_loggers("1", 1, [NAME, "no.such.logger"])
    assert (described["name"], described["config_source"], described["read_only"]) == (NAME, 6, False)
    return str(described["value"])


def test_a_level_is_set_and_taken_back(logger: logging.Logger) -> None:
    inherited = level()
    alter((NAME, SET, "ERROR"))
    assert (level(), logger.getEffectiveLevel()) == ("ERROR", logging.ERROR)
    alter((NAME, SET, "TRACE"))
    assert (level(), logger.isEnabledFor(logging.DEBUG)) == ("TRACE", True)
    alter((NAME, DELETE, None))
    assert level() == inherited


def test_all_loggers_are_described_with_the_root_first() -> None:
    names = [described["name"] for described in describe_loggers("1", 1, None)]
    assert names[0] == "root"
    assert NAME in names


def test_a_validated_change_changes_nothing() -> None:
    before = level()
    alter((NAME, SET, "FATAL"), validate_only=True)
    assert level() == before


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ((NAME, SET, "warn"), ErrorCode.invalid_config),
        ((NAME, SET, None), ErrorCode.invalid_config),
        (("no.such.logger", SET, "INFO"), ErrorCode.invalid_config),
        (("no.such.logger", DELETE, None), ErrorCode.invalid_config),
        (("root", DELETE, None), ErrorCode.invalid_request),
        ((NAME, APPEND, "INFO"), ErrorCode.invalid_request),
        ((NAME, 9, "INFO"), ErrorCode.invalid_request),
    ],
)
def test_a_wrong_change_is_refused_as_a_whole(operation: tuple[str, int, str | None], code: ErrorCode) -> None:
    before = level()
    with pytest.raises(KafkaError) as refused:
        alter((NAME if operation[0] != NAME else "root", SET, "FATAL"), operation)
    assert refused.value.code is code
    assert level() == before


@pytest.mark.parametrize("broker", ["", "x", "7"])
def test_only_this_brokers_loggers_are_known(broker: str) -> None:
    with pytest.raises(KafkaError) as refused:
        describe_loggers(broker, 1, None)
    assert refused.value.code is ErrorCode.invalid_request
    with pytest.raises(KafkaError) as refused:
        alter((NAME, SET, "INFO"), broker=broker)
    assert refused.value.code is ErrorCode.invalid_request
