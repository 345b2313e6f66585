"""Records that a power loss took away: a consumer that has read them learns of it (KIP-320)."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from tests.conftest import StartBroker

pytestmark = pytest.mark.slow

LOG_OVERHEAD = 12


def produce(address: str, values: list[bytes]) -> None:
    """Each value is a batch of its own."""
    producer = Producer({"bootstrap.servers": address})
    for value in values:
        producer.produce("orders", value, partition=0)
        assert producer.flush(30) == 0


def cut_off(log: Path, batches: int) -> None:
    """Leave the first batches of a segment, as a machine does that lost its power before the rest was on the disk."""
    data = log.read_bytes()
    position = 0
    for _ in range(batches):
        (length,) = struct.unpack_from(">i", data, position + 8)
        position += LOG_OVERHEAD + length
    assert position < len(data)
    log.write_bytes(data[:position])


def test_a_consumer_learns_that_what_it_read_is_gone(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data")
    port = broker.port
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
    produce(broker.address, [b"%d" % i for i in range(10)])
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "billing",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("orders", 0, 0)])
    assert [message.value() for message in consumer.consume(10, 30)] == [b"%d" % i for i in range(10)]
    broker.kill()
    cut_off(tmp_path / "data" / "orders-0" / f"{0:020d}.log", 6)

    again = start_broker(tmp_path / "data", port)
    # As many as were lost and more: without an epoch of its own the consumer would go on behind the first four.
    produce(again.address, [b"new %d" % i for i in range(10)])
    message = consumer.poll(60)
    while message is not None and (error := message.error()) is not None and error.retriable():
        message = consumer.poll(60)
    assert message is not None
    found = message.error()
    assert found is not None, message.value()
    assert found.code() in {KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET}, found
    consumer.close()
    again.stop()
