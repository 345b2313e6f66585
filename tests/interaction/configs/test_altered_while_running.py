"""Configs that are altered while the broker runs take effect in it, and are there after the next start."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.errors import BrokerConnectionError
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.config import BrokerConfig
from headwater.logtier.network.listeners import Listeners
from tests.interaction.own_broker import run_broker
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.slow

WAIT_S = 60
HOUR_MS = 3_600_000


def alter(admin: AdminClient, name: str, value: str | None) -> None:
    """Set it for the broker, or delete it."""
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=operation)
    change = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin.incremental_alter_configs([change])[change].result(WAIT_S)


def connect(address: str) -> BlockingConnection:
    host, _, port = address.rpartition(":")
    return BlockingConnection(
        host,
        int(port),
        client_id="test",
        connect_timeout_ms=WAIT_S * 1000,
        request_timeout_ms=WAIT_S * 1000,
        receive_buffer_bytes=-1,
    )


def is_welcome(address: str) -> bool:
    """Whether a new connection is served."""
    try:
        with closing(connect(address)):
            return True
    except BrokerConnectionError:
        return False


def await_that(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.connections", "1"),
        ("max.connections.per.ip", "1"),
        ("max.connections.per.ip.overrides", "localhost:1,10.0.0.1:5"),
    ],
)
def test_fewer_connections_are_admitted_and_those_there_are_stay(tmp_path: Path, name: str, value: str) -> None:
    properties = {"log.dirs": str(tmp_path), "node.id": "1"}

    def lower_and_raise(address: str) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        with closing(connect(address)) as before:
            alter(admin, name, value)
            await_that(lambda: not is_welcome(address))
            before.call(kio_request(ApiKey.API_VERSIONS, 0, {}))
            alter(admin, name, None)
            await_that(lambda: is_welcome(address))
            alter(admin, name, value)
            await_that(lambda: not is_welcome(address))

    def first_and_second(address: str) -> None:
        with closing(connect(address)):
            assert not is_welcome(address)

    run_broker(properties, lower_and_raise)
    run_broker(properties, first_and_second)


def test_a_broker_starts_although_its_limits_cannot_be_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    properties = {"log.dirs": str(tmp_path), "node.id": "1"}

    def use(address: str) -> None:
        alter(AdminClient({"bootstrap.servers": address}), "max.connections", "100")

    async def fail(_listeners: Listeners, _config: BrokerConfig) -> None:
        raise RuntimeError("no limits")

    run_broker(properties, use)
    monkeypatch.setattr(Listeners, "limit_connections", fail)
    run_broker(properties, use)
    assert "a task of the broker failed" in caplog.text


def test_silent_producers_are_forgotten_sooner(tmp_path: Path) -> None:
    clock = ManualClock(int(time.time() * 1000))
    # How often the broker looks after its logs, by a clock of its own; what is due then goes by the test's.
    properties = {"log.dirs": str(tmp_path), "node.id": "1", "log.flush.scheduler.interval.ms": "10"}

    def use(address: str) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("flights", 1, 1)])["flights"].result(WAIT_S)
        producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
        producer.produce("flights", b"LX1")
        assert producer.flush(WAIT_S) == 0

        def producers() -> int:
            with closing(connect(address)) as connection:
                asked = {"topics": ({"name": "flights", "partition_indexes": (0,)},)}
                response = connection.call(kio_request(ApiKey.DESCRIBE_PRODUCERS, 0, asked))
                return len(response.topics[0].partitions[0].active_producers)

        clock.ms += HOUR_MS
        time.sleep(0.1)
        assert producers() == 1
        alter(admin, "producer.id.expiration.ms", str(HOUR_MS // 2))
        clock.ms += HOUR_MS
        await_that(lambda: producers() == 0)

    run_broker(properties, use, clock)
