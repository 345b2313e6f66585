"""Transactions as consumers see them: what is open, aborted and committed, before and after a crash of the broker."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition

if TYPE_CHECKING:
    from tests.conftest import StartBroker, TopicFactory

pytestmark = pytest.mark.slow

#: Small segments: the index of aborted transactions is rolled, written and read back.
SMALL_SEGMENTS = {"segment.bytes": str(1 << 20)}


def transactional_producer(address: str, transactional_id: str | None = None) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": transactional_id or f"id-{uuid.uuid4().hex[:8]}",
            "transaction.timeout.ms": 60_000,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(30)
    return producer


def write(producer: Producer, topic: str, values: list[bytes], *, commit: bool | None) -> None:
    """One transaction; None leaves it open."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    if commit is not None:
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)


def read(address: str, topic: str, isolation_level: str, count: int) -> list[bytes]:
    """The first `count` values, and whether there are none after them."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": isolation_level,
            "enable.partition.eof": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count, 0.5):
                assert message.error() is None, message.error()
                value = message.value()
                assert value is not None
                found.append(value)
        found += [message.value() or b"" for message in consumer.consume(10, 1.0)]
        return found
    finally:
        consumer.close()


def latest(address: str, topic: str, isolation_level: IsolationLevel) -> int:
    admin = AdminClient({"bootstrap.servers": address})
    partition = TopicPartition(topic, 0)
    asked: dict[TopicPartition, Any] = {partition: OffsetSpec.latest()}  # type: ignore[no-untyped-call]
    offset: int = admin.list_offsets(asked, isolation_level=isolation_level)[partition].result(30).offset
    return offset


def test_read_committed_shows_what_is_committed_and_read_uncommitted_everything(
    bootstrap_servers: str, new_topic: TopicFactory
) -> None:
    topic = new_topic(config=SMALL_SEGMENTS)
    producer = transactional_producer(bootstrap_servers)
    committed: list[bytes] = []
    everything: list[bytes] = []
    for i in range(60):
        values = [b"%d-%d-" % (i, j) + bytes(1_000) for j in range(100)]
        write(producer, topic, values, commit=i % 3 != 0)
        everything += values
        if i % 3:
            committed += values
    assert read(bootstrap_servers, topic, "read_committed", len(committed)) == committed
    assert read(bootstrap_servers, topic, "read_uncommitted", len(everything)) == everything


def test_an_open_transaction_holds_read_committed_back(bootstrap_servers: str, new_topic: TopicFactory) -> None:
    topic = new_topic()
    plain = Producer({"bootstrap.servers": bootstrap_servers})
    plain.produce(topic, b"before", partition=0)
    assert plain.flush(30) == 0
    producer = transactional_producer(bootstrap_servers)
    write(producer, topic, [b"inside"], commit=None)
    plain.produce(topic, b"after", partition=0)
    assert plain.flush(30) == 0
    assert read(bootstrap_servers, topic, "read_committed", 1) == [b"before"]
    assert latest(bootstrap_servers, topic, IsolationLevel.READ_COMMITTED) == 1
    assert latest(bootstrap_servers, topic, IsolationLevel.READ_UNCOMMITTED) == 3
    producer.commit_transaction(30)
    assert read(bootstrap_servers, topic, "read_committed", 3) == [b"before", b"inside", b"after"]
    assert latest(bootstrap_servers, topic, IsolationLevel.READ_COMMITTED) == 4


def test_kafka_python_writes_and_reads_transactions(bootstrap_servers: str, new_topic: TopicFactory) -> None:
    topic = new_topic()
    producer = KafkaProducer(
        bootstrap_servers=bootstrap_servers, transactional_id=f"id-{uuid.uuid4().hex[:8]}", enable_idempotence=True
    )
    try:
        producer.init_transactions()
        for i in range(4):
            producer.begin_transaction()
            for j in range(10):
                producer.send(topic, b"%d-%d" % (i, j), partition=0)
            if i % 2:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    try:
        partition = KafkaPythonPartition(topic, 0)
        consumer.assign([partition])
        found: list[bytes] = []
        deadline = time.monotonic() + 30
        while len(found) < 20 and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=500).values():
                found += [record.value for record in records]
        assert found == [b"%d-%d" % (i, j) for i in (1, 3) for j in range(10)]
    finally:
        consumer.close()


def test_transactions_survive_a_killed_broker(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data")
    topic = "flights"
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1, config=SMALL_SEGMENTS)])[topic].result(30)
    producer = transactional_producer(broker.address, "survivor")
    committed: list[bytes] = []
    for i in range(30):
        values = [b"%d-%d-" % (i, j) + bytes(1_000) for j in range(100)]
        write(producer, topic, values, commit=i % 2 == 0)
        if i % 2 == 0:
            committed += values
    write(producer, topic, [b"open"], commit=None)
    broker.kill()
    port = broker.port
    del producer

    again = start_broker(tmp_path / "data", port)
    assert read(again.address, topic, "read_committed", len(committed)) == committed
    stable = latest(again.address, topic, IsolationLevel.READ_COMMITTED)
    assert latest(again.address, topic, IsolationLevel.READ_UNCOMMITTED) == stable + 1
    # The next producer of that id ends what its predecessor left open, and goes on.
    successor = transactional_producer(again.address, "survivor")
    write(successor, topic, [b"later"], commit=True)
    assert read(again.address, topic, "read_committed", len(committed) + 1) == [*committed, b"later"]
    again.stop()
    third = start_broker(tmp_path / "data")
    assert read(third.address, topic, "read_committed", len(committed) + 1) == [*committed, b"later"]
