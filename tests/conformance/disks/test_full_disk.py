"""A broker on a disk that gets full: writes are refused with the right error, the rest goes on, and it heals itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

if TYPE_CHECKING:
    from tests.conftest import StartBroker

pytestmark = pytest.mark.slow

WAIT_S = 60


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB, with a file of 8 MB on it that can be removed to make room."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    (path / "filler").write_bytes(b"\0" * 8_000_000)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


class Outcome:
    """What became of the messages of one producer."""

    def __init__(self) -> None:
        self.delivered: list[int] = []
        self.errors: list[int] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            offset = message.offset()
            assert offset is not None
            self.delivered.append(offset)
        else:
            self.errors.append(error.code())


def produce(address: str, topic: str, count: int) -> Outcome:
    outcome = Outcome()
    producer = Producer({"bootstrap.servers": address, "retries": 0, "message.timeout.ms": 10_000, "log_level": 0})
    for _ in range(count):
        producer.produce(topic, os.urandom(50_000), on_delivery=outcome)
        producer.flush(WAIT_S)
    return outcome


def read_all(address: str, topic: str, start: int, end: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, start)])
    found: list[int] = []
    deadline = time.monotonic() + WAIT_S
    while (not found or found[-1] < end - 1) and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            offset = message.offset()
            assert offset is not None
            found.append(offset)
    consumer.close()
    return found


def test_a_full_disk_refuses_writes_and_recovers_by_itself_when_there_is_room(
    start_broker: StartBroker, small_disk: Path
) -> None:
    data = small_disk / "data"
    broker = start_broker(data)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("flights", 1, 1)])["flights"].result(WAIT_S)
    before = produce(broker.address, "flights", 400)
    assert set(before.errors) == {KafkaError.KAFKA_STORAGE_ERROR}
    end = before.delivered[-1] + 1
    assert before.delivered == list(range(end))
    assert read_all(broker.address, "flights", 0, end) == list(range(end))
    (small_disk / "filler").unlink()
    after = produce(broker.address, "flights", 20)
    assert after.errors == []
    assert after.delivered == list(range(end, end + 20))
    assert "is offline" not in broker.log()
    broker.kill()
    again = start_broker(data)
    assert read_all(again.address, "flights", 0, end + 20) == list(range(end + 20))
    again.stop()


def test_retention_makes_room_on_a_full_disk(start_broker: StartBroker, small_disk: Path) -> None:
    properties = {
        "log.retention.check.interval.ms": "500",
        "log.segment.bytes": "1000000",
        "log.segment.delete.delay.ms": "0",
    }
    broker = start_broker(small_disk / "data", properties=properties)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("flights", 1, 1)])["flights"].result(WAIT_S)
    assert KafkaError.KAFKA_STORAGE_ERROR in produce(broker.address, "flights", 400).errors
    # Not before it is full: a machine that is slow to fill it would never get there.
    retention = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "flights", incremental_configs=[retention])
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while produce(broker.address, "flights", 1).errors and time.monotonic() < deadline:
        time.sleep(0.2)
    assert produce(broker.address, "flights", 20).errors == []
    broker.stop()
