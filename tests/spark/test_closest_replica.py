"""Spark reads from the follower in its rack (KIP-392), and goes on at the leader when that follower is killed."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from headwater.logtier.config.cluster import RACK_AWARE_SELECTOR
from tests.bench.processes import free_port
from tests.conformance.cluster.conftest import PASSWORD, USER, ClusterProcesses
from tests.waiting import until
from tests.zookeeper import ServerOptions, running_zookeeper

pytestmark = pytest.mark.slow

TOPIC, PARTITIONS = "near", 2
LEADER, FOLLOWER = 1, 2
RECORDS, VALUE_BYTES = 300, 1_000
PATIENCE_S = 120
#: Long: the leader names the dead follower to readers, which must find out themselves.
SESSION_MS = 30_000


class Racks:
    """Two brokers in a rack each; the first leads all partitions of the topic."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.cluster = cluster
        self._metrics_ports = {LEADER: free_port(), FOLLOWER: free_port()}

    def start(self) -> None:
        for broker_id, port in self._metrics_ports.items():
            self.cluster.serve(
                broker_id,
                broker_rack=f"rack-{broker_id}",
                replica_selector_class=RACK_AWARE_SELECTOR,
                replica_lag_time_max_ms=str(SESSION_MS),
                prometheus_port=str(port),
            )
        admin = AdminClient({"bootstrap.servers": self.cluster.servers()})
        until(lambda: len(admin.list_topics(timeout=PATIENCE_S).brokers) == 2)
        topic = NewTopic(TOPIC, PARTITIONS, replica_assignment=[[LEADER, FOLLOWER]] * PARTITIONS)
        admin.create_topics([topic])[TOPIC].result(PATIENCE_S)

    def bytes_out(self, broker_id: int) -> int:
        """Bytes of the topic that a broker has sent to readers."""
        url = f"http://127.0.0.1:{self._metrics_ports[broker_id]}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            found = re.search(
                rf'^headwater_topic_bytes_out_total{{topic="{TOPIC}"}} (\S+)$', answer.read().decode(), re.MULTILINE
            )
        return 0 if found is None else int(float(found[1]))

    def produce(self, numbers: range) -> None:
        """Numbers in both partitions, on both brokers when it returns."""
        producer = Producer({"bootstrap.servers": self.cluster.address(LEADER), "acks": "all"})
        for number in numbers:
            value = b"%d" % number
            producer.produce(TOPIC, value.ljust(VALUE_BYTES), partition=number % PARTITIONS)
        assert producer.flush(PATIENCE_S) == 0


@pytest.fixture
def racks(tmp_path: Path) -> Iterator[Racks]:
    with running_zookeeper(tmp_path / "zookeeper", ServerOptions(users={USER: PASSWORD})) as server:
        cluster = ClusterProcesses(tmp_path, server.address, SESSION_MS)
        try:
            racks = Racks(cluster)
            racks.start()
            yield racks
        finally:
            cluster.close()


def test_a_read_and_a_query_go_on_when_the_follower_that_they_read_from_dies(
    racks: Racks, spark: SparkSession, tmp_path: Path
) -> None:
    options = {
        "subscribe": TOPIC,
        "kafka.bootstrap.servers": racks.cluster.servers(),
        "kafka.client.rack": f"rack-{FOLLOWER}",
    }
    number = "int(trim(string(value))) AS number"

    def all_read() -> list[int]:
        frame = spark.read.format("headwater").options(**options).load()
        return sorted(row.number for row in frame.selectExpr(number).collect())

    racks.produce(range(RECORDS))
    assert all_read() == list(range(RECORDS))
    assert racks.bytes_out(FOLLOWER) >= RECORDS * VALUE_BYTES
    assert racks.bytes_out(LEADER) == 0

    seen: list[int] = []
    query = (
        spark.readStream.format("headwater")
        .options(startingOffsets="earliest", **options)
        .load()
        .selectExpr(number)
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda frame, _: seen.extend(row.number for row in frame.collect()))
        .start()
    )
    try:
        query.processAllAvailable()
        assert sorted(seen) == list(range(RECORDS))
        assert racks.bytes_out(FOLLOWER) >= 2 * RECORDS * VALUE_BYTES
        assert racks.bytes_out(LEADER) == 0
        racks.produce(range(RECORDS, 2 * RECORDS))
        racks.cluster.kill(FOLLOWER)
        assert all_read() == list(range(2 * RECORDS))
        query.processAllAvailable()
        assert query.exception() is None
        assert sorted(seen) == list(range(2 * RECORDS))
        assert racks.bytes_out(LEADER) >= 2 * RECORDS * VALUE_BYTES
    finally:
        query.stop()
