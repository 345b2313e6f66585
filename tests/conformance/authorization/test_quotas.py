"""Quotas as unmodified clients meet them: who exceeds one is told to wait, and nobody else waits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess

pytestmark = pytest.mark.slow

WAIT_S = 60
RECORD = os.urandom(10_000)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of these tests alone: their quotas would slow down others."""
    from tests.conftest import BrokerProcess

    process = BrokerProcess(tmp_path_factory.mktemp("quotas") / "data", 0, {"auto.create.topics.enable": "false"})
    try:
        process.await_ready()
        admin = AdminClient({"bootstrap.servers": process.address})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(WAIT_S)
        yield process
        process.stop()
    finally:
        process.close()


def command(broker: BrokerProcess, *arguments: str) -> str:
    """`headwater quotas ...`; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "headwater", "quotas", *arguments, "-b", broker.address],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Throttles:
    """How long a client was told to wait, each time."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def __call__(self, event: Any) -> None:
        if event.throttle_time:
            self.times_s.append(event.throttle_time)


def produce(broker: BrokerProcess, client_id: str, count: int) -> list[float]:
    throttles = Throttles()
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "client.id": client_id,
            "throttle_cb": throttles,
            "batch.num.messages": 1,
            "linger.ms": 0,
        }
    )
    failures: list[Any] = []
    for _ in range(count):
        producer.produce("t", RECORD, partition=0, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(WAIT_S) == 0
    assert failures == [None] * count
    producer.poll(0)
    return throttles.times_s


def test_who_produces_too_much_waits_and_nobody_else_does(broker: BrokerProcess) -> None:
    command(broker, "set", "--client-id", "slow-producer", "producer_byte_rate=50000")
    assert max(produce(broker, "slow-producer", 60)) > 0
    assert produce(broker, "other-producer", 60) == []
    assert "slow-producer" in command(broker, "list")


def test_who_consumes_too_much_gets_everything_in_the_end_and_nobody_else_waits(broker: BrokerProcess) -> None:
    produce(broker, "filler", 100)
    command(broker, "set", "--client-id", "slow-consumer", "consumer_byte_rate=100000")

    def consume(client_id: str) -> list[float]:
        throttles = Throttles()
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": client_id,
                "client.id": client_id,
                "throttle_cb": throttles,
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
            _, end = consumer.get_watermark_offsets(TopicPartition("t", 0), WAIT_S)
            offsets: list[int] = []
            while len(offsets) < min(end, 150):
                message = consumer.poll(WAIT_S)
                assert message is not None
                assert message.error() is None
                offsets.append(message.offset() or 0)
            assert offsets == list(range(len(offsets)))
            return throttles.times_s
        finally:
            consumer.close()

    assert max(consume("slow-consumer")) > 0
    assert consume("other-consumer") == []


def test_who_keeps_the_broker_busy_waits(broker: BrokerProcess) -> None:
    command(broker, "set", "--user", "ANONYMOUS", "--client-id", "busy", "request_percentage=0.001")
    times_s = produce(broker, "busy", 5)  # a second each
    assert 0 < max(times_s) <= 1
    command(broker, "set", "--user", "ANONYMOUS", "--client-id", "busy", "--unset", "request_percentage")
    assert produce(broker, "busy", 20) == []
