"""A topic that is created while no file can be opened: it works soon after files can be opened again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.logtier import broker_chores
from headwater.logtier.runtime.disk import Buffer, RealDisk
from tests.interaction.own_broker import run_broker

pytestmark = pytest.mark.slow


class FullTable(RealDisk):
    """Without file descriptors for the files of new logs as long as `is_full`."""

    is_full = False

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        if self.is_full and ("flights" in path or "__consumer_offsets" in path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        super().write_atomic(path, data, sync=sync)


def test_a_topic_made_without_file_descriptors_works_without_waiting_for_the_next_maintenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_chores, "MAINTENANCE_INTERVAL_MS_MAX", 3_600_000)
    monkeypatch.setattr(broker_chores, "MISSING_LOGS_INTERVAL_S_MIN", 0.01)
    disk = FullTable()

    def use(address: str) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        disk.is_full = True
        with pytest.raises(KafkaException, match="KAFKA_STORAGE_ERROR"):
            admin.create_topics([NewTopic("flights", 3, 1)])["flights"].result()
        # The groups' topic is made now, too; its logs come later.
        consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["flights"])
        while not any(name.startswith("__consumer_offsets") for name in admin.list_topics(timeout=30).topics):
            consumer.poll(0.1)
        disk.is_full = False
        errors: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": address})
        for partition in range(3):
            producer.produce("flights", b"v", partition=partition, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
        assert errors == [None] * 3
        read = consumer.consume(3, timeout=60)
        consumer.close()
        assert [message.value() for message in read] == [b"v"] * 3

    hour_ms = 3_600_000
    properties = {
        "log.flush.scheduler.interval.ms": hour_ms,
        "log.retention.check.interval.ms": hour_ms,
        "group.initial.rebalance.delay.ms": 0,
    }
    run_broker({"log.dirs": str(tmp_path), **properties}, use, disk=disk)
