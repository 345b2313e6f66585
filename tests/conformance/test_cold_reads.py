"""Old data, which is not in the page cache, read by real clients while others write."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, StartBroker

pytestmark = pytest.mark.slow

WAIT_S = 60
MESSAGES = 24_000
VALUE_BYTES = 2_000
PARTITIONS = 2
WORKER = "cold_sender_worker"


def value(number: int) -> bytes:
    return b"%08d" % number + b"v" * VALUE_BYTES


def evict(folder: Path) -> bool:
    """Have the kernel forget what it has of the logs, once they are on the disk; whether it did."""
    is_cold = False
    for path in folder.rglob("old-*/*.log"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            try:
                os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
            except BlockingIOError:
                is_cold = True
    return is_cold


def worker_of(broker: BrokerProcess) -> int | None:
    """The process that sends old data for a broker."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                WORKER in (folder / "cmdline").read_text()
                and f"PPid:\t{broker.pid}\n" in (folder / "status").read_text()
            ):
                return int(folder.name)
        except OSError:  # it ended meanwhile
            continue
    return None


def consumed(address: str, group: str) -> list[list[bytes | None]]:
    """Every value of each partition, in order."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.assign([TopicPartition("old", each, 0) for each in range(PARTITIONS)])
    found: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
    deadline = time.monotonic() + WAIT_S
    try:
        while sum(map(len, found)) < MESSAGES and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.2):
                assert message.error() is None
                found[message.partition() or 0].append(message.value())
    finally:
        consumer.close()
    return found


def consumed_by_kafka_python(address: str) -> list[list[bytes | None]]:
    consumer = KafkaConsumer(bootstrap_servers=address, consumer_timeout_ms=WAIT_S * 1000)
    consumer.assign([KafkaPythonPartition("old", each) for each in range(PARTITIONS)])
    consumer.seek_to_beginning()
    found: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
    try:
        for count, message in enumerate(consumer, 1):
            found[message.partition].append(message.value)
            if count == MESSAGES:
                break
    finally:
        consumer.close()
    return found


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> BrokerProcess:
    """A broker with a topic `old` that it has written a while ago."""
    broker = start_broker(tmp_path / "data", properties={"log.segment.bytes": str(4 << 20)})
    admin = AdminClient({"bootstrap.servers": broker.address})
    topics = [NewTopic("old", PARTITIONS, 1), NewTopic("new", 1, 1)]
    for created in admin.create_topics(topics).values():
        created.result(WAIT_S)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20, "batch.size": 1 << 20})
    for number in range(MESSAGES):
        producer.produce("old", value(number), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    if not evict(tmp_path):
        pytest.skip("this file system keeps everything in memory")
    return broker


EXPECTED = [[value(number) for number in range(first, MESSAGES, PARTITIONS)] for first in range(PARTITIONS)]


def test_old_data_arrives_whole_and_in_order_beside_new_data(broker: BrokerProcess, tmp_path: Path) -> None:
    address = broker.address
    assert worker_of(broker) is None, "nobody has read old data yet"
    written = 0
    with ThreadPoolExecutor(3) as threads:
        readings = [threads.submit(consumed, address, "one"), threads.submit(consumed_by_kafka_python, address)]
        producer = Producer({"bootstrap.servers": address})
        while not all(each.done() for each in readings):
            producer.produce("new", b"new")
            assert producer.flush(WAIT_S) == 0
            written += 1
            if written % 20 == 0:
                evict(tmp_path)
        for reading in readings:
            assert reading.result() == EXPECTED
    assert worker_of(broker) is not None
    low, high = Consumer({"bootstrap.servers": address, "group.id": "two"}).get_watermark_offsets(
        TopicPartition("new", 0), WAIT_S
    )
    assert (low, high) == (0, written)


def test_readers_go_on_when_the_process_that_sends_is_killed(broker: BrokerProcess, tmp_path: Path) -> None:
    address = broker.address
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(consumed, address, "one")
        while (worker := worker_of(broker)) is None:
            assert not reading.done()
            time.sleep(0.001)
        os.kill(worker, signal.SIGKILL)
        assert reading.result() == EXPECTED
    evict(tmp_path)
    assert consumed(address, "two") == EXPECTED
    assert "the process that sends old data ended" in broker.log()
