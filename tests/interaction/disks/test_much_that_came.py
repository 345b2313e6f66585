"""A broker to which much comes brings it to the device before its interval, so that a crash costs little time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.logtier.log.flushing import log_flusher
from headwater.logtier.log.flushing.checkpoints import RECOVERY_POINTS, read_checkpoint
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.disk import RealDisk
from tests.interaction.own_broker import run_broker

pytestmark = pytest.mark.slow

WAIT_S = 60
MESSAGES = 300


def test_what_came_is_on_the_device_without_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_flusher, "_UNFLUSHED_BYTES_MAX", 100_000)
    properties = {
        "log.dirs": str(tmp_path),
        "log.flush.offset.checkpoint.interval.ms": 10 * WAIT_S * 1000,
        "log.flush.start.offset.checkpoint.interval.ms": 10 * WAIT_S * 1000,
    }

    def use(address: str) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("flights", 1, 1)])["flights"].result(WAIT_S)
        producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
        for _ in range(MESSAGES):
            producer.produce("flights", bytes(1_000))
        assert producer.flush(WAIT_S) == 0
        deadline = time.monotonic() + WAIT_S
        disk = RealDisk()
        while read_checkpoint(disk, str(tmp_path), RECOVERY_POINTS).get(TopicPartition("flights", 0), 0) == 0:
            assert time.monotonic() < deadline, "nobody wrote down how far the log is on the device"
            time.sleep(0.1)

    run_broker(properties, use)
