"""What the kill tests share: drivers in groups of their own, their workers and their end, and what readers see."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

END_S = 900
READ_S = 60
#: Of brokers any one of which may die.
CLUSTER = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    # Fewer of them load faster, and any broker still has some.
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "auto.create.topics.enable": False,
}


class Drivers:
    """Processes that run a script of this folder, each in a process group of its own.

    Invariant: after `close` none is left, nor a child of one.
    """

    def __init__(self, script: str, folder: Path) -> None:
        self._script = Path(__file__).with_name(script)
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", str(self._script), *arguments],
            cwd=self._folder,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


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
