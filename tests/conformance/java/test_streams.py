"""A small Kafka Streams application with exactly-once processing on three brokers: it is killed, and each of them.

Kafka's system tests streams_eos and streams_broker_bounce do the same.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.java.conftest import VERSION, run_java
from tests.faults.full_isrs import await_full_isrs
from tests.faults.processes import FaultyCluster
from tests.jars import SPARK_JARS, fetched, java

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WAIT_S = 120
CLUSTER = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
}
#: Of the source, the target, the repartitioned words and the changelog, and of the coordinators.
PARTITIONS = 4 * 2 + 2 * 3
SOURCE = Path(__file__).with_name("WordCount.scala")


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Kafka Streams, and the application compiled by the Scala compiler that comes with Spark: no JDK is needed."""
    jars = fetched(f"kafka-streams-{VERSION}", [("org.apache.kafka", "kafka-streams", VERSION)])
    scala = [str(path) for path in SPARK_JARS.glob("scala-*.jar")]
    classes = tmp_path_factory.mktemp("classes")
    libraries = ":".join([*map(str, jars.glob("*.jar")), *scala])
    run_java(scala, "scala.tools.nsc.Main", ["-d", str(classes), "-classpath", libraries, str(SOURCE)])
    return f"{classes}:{libraries}"


class WordCount:
    """The application as a process."""

    def __init__(self, class_path: str, bootstrap_servers: str, source: str, target: str, folder: Path) -> None:
        arguments = [bootstrap_servers, f"{source}-count", source, target, str(folder)]
        self.output = folder.with_suffix(".log")
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path, "WordCount", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check(self) -> None:
        assert self.process.poll() is None, self.output.read_text()[-4000:]

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def started() -> Iterator[list[WordCount]]:
    processes: list[WordCount] = []
    yield processes
    for process in processes:
        process.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FaultyCluster]:
    made = FaultyCluster(tmp_path, properties=CLUSTER)
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_words_are_counted_exactly_once_though_the_application_and_each_broker_are_killed(
    class_path: str, cluster: FaultyCluster, tmp_path: Path, started: list[WordCount]
) -> None:
    bootstrap_servers, source, target = cluster.bootstrap_servers, "lines", "counts"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_topics([NewTopic(each, 2, 3) for each in (source, target)]).values():
        future.result(WAIT_S)
    words = ["alpha", "beta", "gamma", "delta"]
    expected: Counter[str] = Counter()
    producer = Producer({"bootstrap.servers": bootstrap_servers})

    def produce(lines: int) -> None:
        for number in range(lines):
            line = [words[(number + shift) % 4] for shift in range(number % 3 + 1)]
            expected.update(line)
            producer.produce(source, " ".join(line), partition=number % 2)
        assert producer.flush(WAIT_S) == 0

    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": f"{target}-reader", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(target, index, OFFSET_BEGINNING) for index in (0, 1)])
    seen: dict[str, list[int]] = {}

    def read_until(total: int, application: WordCount) -> None:
        deadline = time.monotonic() + WAIT_S
        while sum(counts[-1] for counts in seen.values()) < total:
            application.check()
            assert time.monotonic() < deadline, f"{seen} after {WAIT_S} s:\n{application.output.read_text()[-4000:]}"
            for message in consumer.consume(500, 0.2):
                assert not message.error(), message.error()
                key: Any = message.key()
                value: Any = message.value()
                seen.setdefault(key.decode(), []).extend(struct.unpack(">q", value))

    produce(300)
    first = WordCount(class_path, bootstrap_servers, source, target, tmp_path / "state")
    started.append(first)
    read_until(expected.total() // 2, first)
    produce(300)
    first.kill()
    second = WordCount(class_path, bootstrap_servers, source, target, tmp_path / "state")
    started.append(second)
    read_until(expected.total(), second)
    for broker in cluster.brokers.values():
        await_full_isrs(admin, len(cluster.brokers), PARTITIONS)
        produce(300)
        # In the middle of what the application makes of them.
        read_until(expected.total() - 300, second)
        broker.kill()
        produce(300)
        # The others take over what it led and coordinated, and then it comes back.
        read_until(expected.total() - 300, second)
        cluster.start_missing()
        read_until(expected.total(), second)
    consumer.close()
    assert {word: counts[-1] for word, counts in seen.items()} == expected
    for word, counts in seen.items():
        # Updates of a word are in order; a record counted twice would skip or repeat a number.
        assert counts == sorted(set(counts)), word
