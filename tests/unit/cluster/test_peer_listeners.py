"""The listener by which another broker is reached, while brokers differ."""

from __future__ import annotations

import logging

import pytest

from headwater.logtier.cluster.peer_listeners import PeerListeners
from headwater.logtier.config import BrokerConfig, ConfigError, Endpoint
from headwater.logtier.metadata.image import BrokerRegistration

LISTENERS = {
    "node.id": 1,
    "listeners": "A://127.0.0.1:9092,B://127.0.0.1:9093,C://127.0.0.1:9094",
    "listener.security.protocol.map": "A:PLAINTEXT,B:SASL_PLAINTEXT,C:SASL_PLAINTEXT",
    "listener.name.b.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.b.plain.sasl.jaas.config": 'a.PlainLoginModule required username="b" password="p" user_b="p";',
    "listener.name.c.sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
}


def listeners(own: str) -> PeerListeners:
    return PeerListeners(BrokerConfig.from_properties({**LISTENERS, "inter.broker.listener.name": own}))


def broker(port: int, epoch: int = 1) -> BrokerRegistration:
    endpoints = tuple(Endpoint(name, "broker2", 9092 + number) for number, name in enumerate("ABCD"))
    return BrokerRegistration(2, "broker2", port, epoch=epoch, endpoints=endpoints)


def test_a_broker_is_reached_at_its_own_listener_for_brokers() -> None:
    assert listeners("A").name(broker(9092)) == "A"
    assert listeners("A").name(broker(9093)) == "B"
    assert listeners("B").name(broker(9092)) == "A"
    assert (listeners("A").security(broker(9093)).username, listeners("B").security(broker(9092)).protocol) == (
        "b",
        "PLAINTEXT",
    )


def test_a_listener_without_a_login_or_unknown_here_is_not_used() -> None:
    assert listeners("A").name(broker(9094)) == "A"
    assert listeners("A").name(broker(9095)) == "A"
    assert listeners("A").name(broker(1)) == "A"
    assert listeners("B").security(None).username == "b"


def test_the_own_listener_needs_a_login() -> None:
    with pytest.raises(ConfigError, match=r"listener C: sasl\.mechanism\.inter\.broker\.protocol is PLAIN"):
        listeners("C")


def test_a_difference_is_one_line_a_registration(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    mixed = listeners("B")
    for epoch in (1, 1, 2, 2):
        mixed.name(broker(9092, epoch))
    mixed.name(broker(9093, 3))
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "broker 2 serves brokers at listener A, and this broker at B"
    ] * 2
