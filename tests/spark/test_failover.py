"""A leader that goes away under Spark: an Apache Kafka of two brokers, one of which is killed."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from tests.bench.peers import apache_kafka
from tests.bench.processes import Child, free_port
from tests.jars import java
from tests.spark.conftest import KAFKA_JVM

pytestmark = pytest.mark.slow

TOPIC = "moved"
PARTITIONS = 4
WAIT_S = 90


class Cluster:
    """Two brokers; the first is the controller, too."""

    def __init__(self, folder: Path) -> None:
        self.cluster_id = "H" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        self.controller_port = free_port()
        self.ports = [free_port(), free_port()]
        self.brokers: list[Child] = []
        self._folder = folder

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def start(self) -> None:
        for number, port in enumerate(self.ports, 1):
            folder = self._folder / str(number)
            folder.mkdir()
            listeners = f"PLAINTEXT://127.0.0.1:{port}"
            properties = {
                "process.roles": "broker,controller" if number == 1 else "broker",
                "node.id": str(number),
                "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
                "controller.listener.names": "CONTROLLER",
                "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self.controller_port}" if number == 1 else listeners,
                "advertised.listeners": listeners,
                "log.dirs": str(folder / "data"),
                "broker.session.timeout.ms": "9000",
                "broker.heartbeat.interval.ms": "500",
                "offsets.topic.replication.factor": "1",
            }
            config = folder / "server.properties"
            config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
            command = [java(), *KAFKA_JVM, "-cp", f"{apache_kafka.jars()}/*"]
            subprocess.run(
                [*command, "kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(config)],
                check=True,
                capture_output=True,
            )
            self.brokers.append(Child("kafka", [*command, "kafka.Kafka", str(config)], folder / "broker.log"))
        for broker, port in zip(self.brokers, self.ports, strict=True):
            broker.await_kafka(port)

    def kill(self, number: int) -> None:
        os.killpg(self.brokers[number - 1].pid, signal.SIGKILL)
        self.brokers[number - 1].process.wait()

    def stop(self) -> None:
        for broker in self.brokers[::-1]:
            broker.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_readers_and_writers_go_on_at_the_new_leader(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    deadline = time.monotonic() + WAIT_S
    while len(admin.list_topics(timeout=10).brokers) < 2:
        assert time.monotonic() < deadline, "the second broker does not join"
        time.sleep(0.1)
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 2)])[TOPIC].result(30)
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}

    def write(first: int, last: int) -> None:
        rows = spark.range(first, last).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")
        rows.write.format("headwater").mode("append").options(topic=TOPIC, **options).save()

    seen: list[int] = []
    query = (
        spark.readStream.format("headwater")
        .options(subscribe=TOPIC, startingOffsets="earliest", **options)
        .load()
        .selectExpr("int(string(value)) AS id")
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda frame, _: seen.extend(row.id for row in frame.collect()))
        .start()
    )
    try:
        write(0, 1000)
        query.processAllAvailable()
        assert sorted(seen) == list(range(1000))
        leaders = {part.leader for part in admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions.values()}
        assert leaders == {1, 2}
        cluster.kill(2)
        write(1000, 2000)
        query.processAllAvailable()
        assert query.exception() is None
        assert sorted(seen) == list(range(2000))
        frame = spark.read.format("headwater").options(subscribe=TOPIC, **options).load()
        assert frame.selectExpr("count(*)", "count(DISTINCT value)").collect()[0][:] == (2000, 2000)
    finally:
        query.stop()
