"""What the kill tests share: a driver's workers and its end, and what readers of a topic see."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

END_S = 900
READ_S = 60


def workers_of(session: int) -> list[int]:
    """The Python workers of a driver: children of Spark's daemon, in the driver's session."""
    found: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                found[int(folder.name)] = int(fields[1])
    return [process for process, parent in found.items() if parent in found]


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=END_S)
    return process.returncode, out, err


def wait_until(done: Callable[[], bool], otherwise: str) -> None:
    deadline_s = time.monotonic() + END_S
    while not done():
        assert time.monotonic() < deadline_s, otherwise
        time.sleep(0.1)


def committed_records(servers: str, topic: str) -> list[Any]:
    """Every committed record of a topic, in the order of a partition's offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "verdict",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    left = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
    found: list[Any] = []
    deadline_s = time.monotonic() + READ_S
    while left:
        assert time.monotonic() < deadline_s, f"{topic}: partitions {left} do not end"
        for message in consumer.consume(10_000, 0.2):
            error = message.error()
            if error is None:
                found.append(message)
                continue
            assert error.code() == KafkaError._PARTITION_EOF, error
            left.discard(message.partition() or 0)
    consumer.close()
    return found
