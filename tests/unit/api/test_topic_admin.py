"""Checks and messages of topic administration that need no broker."""

from __future__ import annotations

import socket

import pytest

from headwater.api.connection import (
    BootstrapServersError,
    BrokerUnreachableError,
    parse_bootstrap_servers,
    require_reachable,
)
from headwater.api.topic_admin import ConfigChange, ErrorCode, TopicAdmin, TopicAdminError, TopicRequest
from headwater.api.topic_model import CONFIGS_MAX, PARTITIONS_MAX, validate_changes, validate_request


def refused_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (TopicRequest(".."), ErrorCode.INVALID_TOPIC),
        (TopicRequest("a b"), ErrorCode.INVALID_TOPIC),
        (TopicRequest("täg"), ErrorCode.INVALID_TOPIC),
        (TopicRequest("a\n"), ErrorCode.INVALID_TOPIC),
        (TopicRequest("t", 0), ErrorCode.INVALID_PARTITIONS),
        (TopicRequest("t", PARTITIONS_MAX + 1), ErrorCode.INVALID_PARTITIONS),
        (TopicRequest("t", 1, 40_000), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicRequest("t", replica_assignment=[[1], [1, 2]]), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicRequest("t", replica_assignment=[[]]), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicRequest("t", 1, replica_assignment=[[1]]), ErrorCode.INVALID_REQUEST),
        (TopicRequest("t", configs={"a": "x" * 20_000}), ErrorCode.INVALID_CONFIG),
    ],
)
def test_an_impossible_topic_is_refused_before_a_broker_is_asked(request_: TopicRequest, code: ErrorCode) -> None:
    with pytest.raises(TopicAdminError) as caught:
        validate_request(request_)
    assert caught.value.code is code
    assert len(caught.value.message) < 200


def test_a_broker_that_is_not_there_is_named_with_the_reason() -> None:
    address = f"127.0.0.1:{refused_port()}"
    with pytest.raises(TopicAdminError, match=f"no broker answers at {address}: Connection refused") as caught:
        TopicAdmin(address).list_topics()
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_the_second_bootstrap_server_will_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_reachable(f"127.0.0.1:{refused_port()},127.0.0.1:{server.getsockname()[1]}")


def test_every_bootstrap_server_that_fails_is_named() -> None:
    first, second = refused_port(), refused_port()
    with pytest.raises(BrokerUnreachableError, match=f"{first}.*{second}"):
        require_reachable(f"127.0.0.1:{first},127.0.0.1:{second}")


@pytest.mark.parametrize("text", ["", ",", "host", "host:", ":9092", "host:0", "host:65536", "host:x", "host:９"])
def test_bootstrap_servers_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(BootstrapServersError):
        parse_bootstrap_servers(text)


@pytest.mark.parametrize(
    "changes",
    [
        [],
        [ConfigChange("", "1")],
        [ConfigChange("a", "1"), ConfigChange("a", None)],
        [ConfigChange(f"c{number}", "1") for number in range(CONFIGS_MAX + 1)],
    ],
)
def test_config_changes_that_no_broker_could_take_are_refused(changes: list[ConfigChange]) -> None:
    with pytest.raises(TopicAdminError):
        validate_changes(changes)
