from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.logtier.client.cluster import ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.pipelines.datasource.batch_reader import PushdownBatchReader
from headwater.pipelines.datasource.errors import user_message
from headwater.pipelines.datasource.options import ReadOptions
from tests.spark.conftest import Produce, ReadTopic

pytestmark = pytest.mark.slow

NewTopic = Callable[..., str]
BASE_MS = 1_600_000_000_000


def numbered(count: int, partitions: int, **extra: Any) -> list[dict[str, Any]]:
    return [
        {
            "key": b"k%d" % i,
            "value": b"v%d" % i,
            "partition": i % partitions,
            "timestamp": BASE_MS + i * 1000,
            **extra,
        }
        for i in range(count)
    ]


def failing(frame_of: Callable[[], Any]) -> str:
    """The one line that a user gets to see."""
    with pytest.raises(PySparkException) as caught:
        frame_of()
    message = user_message(caught.value)
    assert message is not None, str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_with_all_columns(
    codec: str, new_topic: NewTopic, produce: Produce, read_topic: ReadTopic
) -> None:
    topic = new_topic(2)
    produce(topic, numbered(1000, 2), **{"compression.type": codec})
    frame = read_topic(topic)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema.fields] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    rows = sorted(frame.collect(), key=lambda row: row.timestamp)
    assert [(bytes(row.key), bytes(row.value), row.topic) for row in rows] == [
        (b"k%d" % i, b"v%d" % i, topic) for i in range(1000)
    ]
    assert [(row.partition, row.offset, row.timestampType) for row in rows] == [(i % 2, i // 2, 0) for i in range(1000)]
    seconds = read_topic(topic).selectExpr("min(unix_millis(timestamp)) AS low", "max(unix_millis(timestamp)) AS high")
    assert tuple(seconds.collect()[0]) == (BASE_MS, BASE_MS + 999_000)


def test_headers_come_when_asked_for(new_topic: NewTopic, produce: Produce, read_topic: ReadTopic) -> None:
    topic = new_topic()
    produce(topic, [{"value": b"1", "headers": [("a", b"x"), ("b", None)]}, {"value": b"2"}])
    rows = read_topic(topic, includeHeaders="true").orderBy("offset").collect()
    assert [(header.key, header.value and bytes(header.value)) for header in rows[0].headers] == [
        ("a", b"x"),
        ("b", None),
    ]
    assert rows[1].headers is None


def test_null_and_empty_keys_and_values_differ(new_topic: NewTopic, produce: Produce, read_topic: ReadTopic) -> None:
    topic = new_topic()
    produce(topic, [{"value": None, "key": b""}, {"value": b""}, {"value": b"v", "key": b"k"}])
    rows = read_topic(topic).orderBy("offset").collect()
    assert [(row.key, row.value) for row in rows] == [(b"", None), (None, b""), (b"k", b"v")]


def test_an_empty_topic_is_an_empty_frame(new_topic: NewTopic, read_topic: ReadTopic) -> None:
    assert read_topic(new_topic(3)).count() == 0


def test_offsets_timestamps_assign_and_pattern_choose_what_is_read(
    new_topic: NewTopic, produce: Produce, read_topic: ReadTopic, spark: SparkSession, bootstrap_servers: str
) -> None:
    topic = new_topic(2)
    produce(topic, numbered(20, 2))

    def offsets(**options: Any) -> list[tuple[int, int]]:
        rows = read_topic(topic, **options).select("partition", "offset").collect()
        return sorted((row.partition, row.offset) for row in rows)

    positions = {
        "startingOffsets": json.dumps({topic: {"0": 8, "1": -2}}),
        "endingOffsets": json.dumps({topic: {"0": -1, "1": 2}}),
    }
    assert offsets(**positions) == [(0, 8), (0, 9), (1, 0), (1, 1)]
    assert offsets(startingTimestamp=BASE_MS + 17_500) == [(0, 9), (1, 9)]
    by_timestamp = json.dumps({topic: {"0": BASE_MS + 18_000, "1": BASE_MS + 30_000}})
    assert offsets(startingOffsetsByTimestamp=by_timestamp, startingOffsetsByTimestampStrategy="latest") == [(0, 9)]
    assert offsets(endingTimestamp=BASE_MS + 2_000) == [(0, 0), (1, 0)]
    assert offsets(minPartitions=7) == [(p, o) for p in range(2) for o in range(10)]
    reader = spark.read.format("headwater").option("kafka.bootstrap.servers", bootstrap_servers)
    assert reader.option("assign", json.dumps({topic: [1]})).load().count() == 10
    reader = spark.read.format("headwater").option("kafka.bootstrap.servers", bootstrap_servers)
    assert reader.option("subscribePattern", topic[:-1] + ".").load().count() == 20
    assert "has no record at or after" in failing(lambda: offsets(startingTimestamp=BASE_MS + 90_000))


def test_filters_in_a_view_narrow_what_is_fetched(
    new_topic: NewTopic,
    produce: Produce,
    spark: SparkSession,
    counting_proxy: Callable[[str], CountingProxy],
) -> None:
    """Counted in bytes at a proxy before the broker: the rows alone would not show who filtered."""
    topic = new_topic(4)
    produce(topic, [{**record, "value": b"x" * 1000} for record in numbered(4000, 4)], **{"batch.size": 20_000})
    proxy = counting_proxy(topic)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW pushed USING headwater "
        f"OPTIONS (`kafka.bootstrap.servers` '{proxy.address}', subscribe '{topic}', `headwater.pushdown` 'true')"
    )
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW outer_view AS SELECT *, length(value) AS size FROM pushed")

    def fetched(query: str) -> tuple[int, int]:
        proxy.reset()
        return spark.sql(query).collect()[0][0], proxy.bytes_from_broker

    everything, all_bytes = fetched("SELECT count(*) FROM outer_view")
    assert everything == 4000
    assert all_bytes > 4_000_000
    count, some_bytes = fetched("SELECT count(*) FROM outer_view WHERE partition = 2")
    assert count == 1000
    assert all_bytes / 5 < some_bytes < all_bytes / 3
    count, some_bytes = fetched("SELECT count(*) FROM outer_view WHERE offset >= 900 AND partition IN (0, 1)")
    assert count == 200
    assert some_bytes < all_bytes / 10
    late = datetime.fromtimestamp((BASE_MS + 3_900_000) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    count, some_bytes = fetched(f"SELECT count(*) FROM outer_view WHERE timestamp >= '{late}'")
    assert count == 100
    assert some_bytes < all_bytes / 10
    assert fetched("SELECT count(*) FROM outer_view WHERE size > 10 AND topic = 'another'")[0] == 0


def test_rows_without_what_a_filter_asks_for_do_not_leave_the_task(
    new_topic: NewTopic, produce: Produce, spark: SparkSession, bootstrap_servers: str
) -> None:
    """Seen in the reader's rows, as the plan counts them: the filter above it would hide who left them out."""
    topic = new_topic(1)
    records: list[dict[str, Any]] = [{"key": b"k", "value": b"v"} for _ in range(97)]
    records += [{"key": None, "value": b"v", "headers": [("a", b"1")]}, {"key": b"k", "value": None}]
    records += [{"key": b"k", "value": b"v", "headers": [("b", None), ("a", b"2")]}]
    produce(topic, records)
    frame = (
        spark.read.format("headwater")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .option("headwater.pushdown", "true")
        .load()
    )

    def handed_over(condition: str) -> tuple[list[int], int]:
        found = frame.where(condition).select("offset")
        offsets = sorted(row.offset for row in found.collect())
        plan = found._jdf.queryExecution().executedPlan()
        scan = plan.collectLeaves().apply(0)
        return offsets, scan.metrics().apply("numOutputRows").value()

    assert handed_over("headers IS NOT NULL") == ([97, 99], 2)
    assert handed_over("headers IS NOT NULL AND key IS NOT NULL") == ([99], 1)
    offsets, rows = handed_over("value IS NOT NULL")
    assert (len(offsets), rows) == (99, 99)
    assert handed_over("value IS NULL")[0] == [98]
    assert frame.count() == 100


def test_the_planned_ranges_follow_the_filters(new_topic: NewTopic, produce: Produce, bootstrap_servers: str) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, LessThanOrEqual

    topic = new_topic(2)
    produce(topic, numbered(100, 2))
    options = ReadOptions.parse({"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic})
    reader = PushdownBatchReader(options)
    filters = [EqualTo(("partition",), 1), GreaterThan(("offset",), 9), LessThanOrEqual(("offset",), 19)]
    inexact = LessThanOrEqual(("timestamp",), datetime.now(UTC))
    assert list(reader.pushFilters([*filters, inexact])) == [inexact]
    assert [(part.partition, part.start, part.end) for part in reader.ranges()] == [(1, 10, 20)]


def test_without_pushdown_the_source_works_where_filters_are_switched_off(
    new_topic: NewTopic, produce: Produce, read_topic: ReadTopic, spark: SparkSession
) -> None:
    topic = new_topic()
    produce(topic, numbered(10, 1))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert read_topic(topic, **{"headwater.pushdown": "false"}).where("offset > 4").count() == 5
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "soon"}, "option startingOffsets = 'soon': neither earliest, latest"),
        ({"startingOffsets": "latest"}, "a batch read cannot start at latest"),
        ({"endingOffsets": "earliest"}, "a batch read cannot end at earliest"),
        ({"startingOffsets": '{"TOPIC": {"0": 0}}'}, "does not name"),
        ({"startingTimestamp": 2000, "endingTimestamp": 1000}, "an end that lies before the start"),
        ({"startingOffsets": '{"TOPIC": {"0": 0, "1": 300}}'}, "-1 ends at offset 3; 300 lies beyond"),
        ({"endingOffsets": '{"TOPIC": {"0": 300, "1": 0}}'}, "-0 ends at offset 3; 300 lies beyond"),
    ],
)
def test_a_bad_option_is_one_clear_line(
    options: dict[str, Any], message: str, new_topic: NewTopic, read_topic: ReadTopic, produce: Produce
) -> None:
    topic = new_topic(2)
    produce(topic, [{"value": b"v", "partition": i % 2, "timestamp": 1000 * (i // 2 + 1)} for i in range(6)])
    given = {name: str(value).replace("TOPIC", topic) for name, value in options.items()}
    assert message in failing(lambda: read_topic(**{"topic": topic, **given}).count())


def test_an_unknown_topic_is_one_clear_line(read_topic: ReadTopic) -> None:
    assert failing(lambda: read_topic("no-such-topic").count()) == (
        "there is no topic 'no-such-topic'; create it or correct the name"
    )


def test_no_broker_is_one_clear_line(read_topic: ReadTopic) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = {"kafka.bootstrap.servers": f"127.0.0.1:{port}"}
    assert f"no broker answers at 127.0.0.1:{port}" in failing(lambda: read_topic("t", **options).count())


def test_a_corrupt_batch_fails_the_query_with_its_place(
    new_topic: NewTopic, produce: Produce, read_topic: ReadTopic, counting_proxy: Callable[[str], CountingProxy]
) -> None:
    topic = new_topic()
    produce(topic, [{"value": b"the-record-to-be-damaged"}])
    proxy = counting_proxy(topic)
    proxy.damage = (b"the-record-to-be-damaged", b"the-record-to-be-d?maged")
    options = {"kafka.bootstrap.servers": proxy.address}
    message = failing(lambda: read_topic(topic, **options).collect())
    assert message == f"{topic}-0: the record batch at offset 0 is corrupt: its CRC is wrong"


def test_start_offsets_behind_the_log_are_a_data_loss(
    produce: Produce, read_topic: ReadTopic, start_broker: Any, tmp_path: Path
) -> None:
    properties = {"log.retention.check.interval.ms": "100", "log.retention.ms": "60000"}
    broker = start_broker(tmp_path / "data", properties=properties)
    topic, servers = "kept-for-a-minute", {"bootstrap.servers": broker.address}
    produce(topic, numbered(10, 1), **servers)
    consumer = Consumer({**servers, "group.id": "unused"})
    deadline = time.monotonic() + 60
    while consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[0] < 10:
        assert time.monotonic() < deadline, "retention did not delete what is older than a minute"
        time.sleep(0.1)
    consumer.close()
    produce(topic, [{"value": b"new"}] * 6, **servers)
    options = {"startingOffsets": json.dumps({topic: {"0": 1}}), "kafka.bootstrap.servers": broker.address}
    message = failing(lambda: read_topic(topic, **options).count())
    assert f"{topic}-0: the offsets 1 to 9 were deleted" in message
    assert "failOnDataLoss=false" in message
    assert read_topic(topic, failOnDataLoss="false", **options).count() == 6


class CountingProxy:
    """Stands before the leader of a topic: counts what the broker sends, and can damage it.

    Metadata would lead clients past it, so the leader's port is replaced in small answers, where it is four bytes.
    """

    def __init__(self, broker: tuple[str, int]) -> None:
        self._broker = broker
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.bytes_from_broker = 0
        self.damage: tuple[bytes, bytes] | None = None
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        self.bytes_from_broker = 0

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            upstream = socket.create_connection(self._broker)
            self._sockets += [client, upstream]
            threading.Thread(target=self._pump, args=(client, upstream, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(upstream, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, from_broker: bool) -> None:
        old_port = self._broker[1].to_bytes(4, "big")
        new_port = self.port.to_bytes(4, "big")
        try:
            while data := source.recv(1 << 20):
                if from_broker:
                    self.bytes_from_broker += len(data)
                    if len(data) < 10_000:
                        data = data.replace(old_port, new_port)
                    if self.damage:
                        data = data.replace(*self.damage)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()

    def close(self) -> None:
        self._server.close()
        for one in self._sockets:
            one.close()


@pytest.fixture
def counting_proxy(bootstrap_servers: str) -> Iterator[Callable[[str], CountingProxy]]:
    """Makes a proxy before the leader of a topic's partitions."""
    proxies: list[CountingProxy] = []

    def make(topic: str) -> CountingProxy:
        with ClusterClient(ClientConfig(parse_bootstrap_servers(bootstrap_servers))) as cluster:
            cluster.partitions(topic)
            connection = cluster.open_leader_connection(topic, 0)
            host, _, port = connection.address.rpartition(":")
            connection.close()
        proxies.append(CountingProxy((host, int(port))))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()
