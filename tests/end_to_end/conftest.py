"""Pipelines as users run them: the command line in a process of its own, on a real broker and real Spark."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.end_to_end.delta_log import delta_rows

RUN_SECONDS_MAX = 280
READ_SECONDS_MAX = 60


class Headwater:
    """Runs commands to their end, in a folder of the test's own; nothing is left running."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self,
        *arguments: str,
        stop_at: str = "",
        on_line: Callable[[str], None] = lambda _: None,
        within_s: float = RUN_SECONDS_MAX,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command.

        Args:
            stop_at: SIGTERM is sent when a line of stderr holds this text.
            on_line: Called with each line of stderr, as it comes.
            within_s: Seconds after which it is killed.
        """
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "headwater", *arguments],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            timer = threading.Timer(within_s, process.kill)
            timer.start()
            try:
                told = []
                assert process.stderr is not None
                assert process.stdout is not None
                for line in process.stderr:
                    told.append(line)
                    on_line(line)
                    if stop_at and stop_at in line:
                        process.send_signal(signal.SIGTERM)
                out = process.stdout.read()
                code = process.wait()
            finally:
                timer.cancel()
                process.kill()
        return subprocess.CompletedProcess(arguments, code, out, "".join(told))


@pytest.fixture
def headwater(tmp_path: Path) -> Headwater:
    return Headwater(tmp_path)


@dataclass(frozen=True, slots=True)
class Message:
    """A record as a consumer sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]


class Topics:
    """Produces to and reads whole topics, as far as committed; the names begin with a prefix of the test's own."""

    def __init__(self, bootstrap_servers: str, admin: AdminClient) -> None:
        self.prefix = f"e2e{uuid.uuid4().hex[:8]}"
        self.servers = bootstrap_servers
        self._admin = admin

    def produce(self, topic: str, records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "partitioner": "murmur2_random"})
        for key, value in records:
            producer.produce(topic, key=key, value=value)
        assert producer.flush(30) == 0

    def read(self, topic: str) -> list[Message]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            left = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in left])
            found: list[Message] = []
            deadline = time.monotonic() + READ_SECONDS_MAX
            while left:
                assert time.monotonic() < deadline, f"{topic}: no end of {left} within {READ_SECONDS_MAX} s"
                for message in consumer.consume(500, 0.2):
                    error, partition, offset = message.error(), message.partition(), message.offset()
                    assert partition is not None
                    if error is not None:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        left.discard(partition)
                        continue
                    pairs: Any = message.headers() or []
                    headers = {name: value.decode() for name, value in pairs}
                    assert offset is not None
                    found.append(Message(partition, offset, message.key(), message.value(), headers))
            return found
        finally:
            consumer.close()

    def delete(self) -> None:
        names = [name for name in self._admin.list_topics(timeout=30).topics if name.startswith(self.prefix)]
        for future in (self._admin.delete_topics(names, operation_timeout=30) if names else {}).values():
            future.result(30)


@pytest.fixture
def topics(bootstrap_servers: str, admin: AdminClient) -> Iterator[Topics]:
    made = Topics(bootstrap_servers, admin)
    yield made
    made.delete()


@pytest.fixture
def read_delta() -> Callable[[Path], list[dict[str, Any]]]:
    return delta_rows
