from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headwater.pipelines.datasource.errors import user_message
from tests.spark.conftest import Produce, ReadTopic

pytestmark = pytest.mark.slow

NewTopic = Callable[..., str]
Write = Callable[..., None]


@pytest.fixture
def write(bootstrap_servers: str) -> Write:
    def save(frame: DataFrame, topic: str | None = None, **options: str) -> None:
        writer = frame.write.format("headwater").mode("append").option("kafka.bootstrap.servers", bootstrap_servers)
        if topic is not None:
            writer = writer.option("topic", topic)
        writer.options(**options).save()

    return save


def consume(bootstrap_servers: str, topic: str, partitions: int, count: int) -> list[Any]:
    """Read by librdkafka: other eyes than ours."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    messages: list[Any] = []
    while len(messages) < count:
        got = consumer.consume(count - len(messages), timeout=60)
        assert got, f"{len(messages)} of {count} records came"
        assert not [message.error() for message in got if message.error()]
        messages += got
    consumer.close()
    return messages


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_other_clients_read_what_is_written_in_every_codec(
    codec: str, spark: SparkSession, new_topic: NewTopic, write: Write, bootstrap_servers: str
) -> None:
    topic = new_topic(3)
    frame = spark.range(2000).selectExpr("concat('k', id % 50) AS key", "concat('v', id) AS value")
    write(frame, topic, **{"kafka.compression.type": codec, "kafka.batch.size": "4000"})
    messages = consume(bootstrap_servers, topic, 3, 2000)
    assert sorted(message.value() for message in messages) == sorted(b"v%d" % i for i in range(2000))
    assert all(message.key() == b"k%d" % (int(message.value()[1:]) % 50) for message in messages)


def test_keys_land_where_the_murmur2_partitioner_puts_them(
    spark: SparkSession, new_topic: NewTopic, write: Write, produce: Produce, bootstrap_servers: str
) -> None:
    ours, theirs = new_topic(7), new_topic(7)
    keys = [f"key {number} {'x' * (number % 13)}" for number in range(500)]
    write(spark.createDataFrame([(key, "v") for key in keys], "key string, value string"), ours)
    produce(theirs, [{"key": key.encode(), "value": b"v"} for key in keys], partitioner="murmur2_random")

    def placed(topic: str) -> dict[bytes, int]:
        return {message.key(): message.partition() for message in consume(bootstrap_servers, topic, 7, 500)}

    assert placed(ours) == placed(theirs)


def test_order_within_a_partition_is_the_order_of_the_rows(
    spark: SparkSession, new_topic: NewTopic, write: Write, read_topic: ReadTopic
) -> None:
    topic = new_topic(4)
    frame = spark.range(0, 20000, 1, 1).selectExpr("concat('k', id % 100) AS key", "cast(id AS string) AS value")
    write(frame, topic, **{"kafka.batch.size": "2000"})
    rows = (
        read_topic(topic).orderBy("partition", "offset").selectExpr("partition", "int(string(value)) AS id").collect()
    )
    assert len(rows) == 20000
    for before, after in itertools.pairwise(rows):
        assert before.partition != after.partition or before.id < after.id


def test_nulls_headers_partitions_and_topic_columns_are_kept(
    spark: SparkSession, new_topic: NewTopic, write: Write, bootstrap_servers: str
) -> None:
    first, second = new_topic(3), new_topic(3)
    rows = [
        (first, 2, None, b"v1", [("h", b"1"), ("h", None)]),
        (first, 1, b"", None, None),
        (second, 0, b"k", b"", []),
    ]
    schema = "topic string, partition int, key binary, value binary, headers array<struct<key: string, value: binary>>"
    write(spark.createDataFrame(rows, schema))
    got = consume(bootstrap_servers, first, 3, 2) + consume(bootstrap_servers, second, 3, 1)
    seen = {(m.topic(), m.partition(), m.key(), m.value(), tuple(m.headers() or ())) for m in got}
    assert seen == {
        (first, 2, None, b"v1", (("h", b"1"), ("h", None))),
        (first, 1, b"", None, ()),
        (second, 0, b"k", b"", ()),
    }


def test_rows_without_a_key_reach_every_partition(
    spark: SparkSession, new_topic: NewTopic, write: Write, read_topic: ReadTopic
) -> None:
    topic = new_topic(4)
    write(spark.range(10_000).selectExpr("repeat('x', 100) AS value"), topic)
    counts = [row[1] for row in read_topic(topic).groupBy("partition").count().collect()]
    assert len(counts) == 4
    assert sum(counts) == 10_000
    assert max(counts) < 2 * min(counts)


def failing(action: Callable[[], Any]) -> str:
    with pytest.raises(PySparkException) as caught:
        action()
    message = user_message(caught.value)
    assert message is not None, str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["'k' AS key"], {}, "a column named value is needed"),
        (["id AS value"], {}, "column value is of type bigint; it must be string or binary"),
        (["'v' AS value", "1.5 AS key"], {}, "column key is of type decimal(2,1)"),
        (["'v' AS value", "array('h') AS headers"], {}, "it must be array<struct<key:string,value:binary>>"),
        (["'v' AS value", "9 AS partition"], {}, "partition 9 in the data, but the topic has the partitions 0 to 1"),
        (["'v' AS value"], {"kafka.acks": "2"}, "option kafka.acks = '2': only all or -1 or 1 or 0 is supported"),
        (["'v' AS value"], {"kafka.compression.type": "brotli"}, "only none or gzip or snappy or lz4 or zstd"),
        (["'v' AS value"], {"kafka.transactional.id": "x"}, "kafka.transactional.id is not supported"),
        (["repeat('x', 3000000) AS value"], {}, "MESSAGE_TOO_LARGE"),
    ],
)
def test_what_cannot_be_written_is_one_clear_line(
    columns: list[str],
    options: dict[str, str],
    message: str,
    spark: SparkSession,
    new_topic: NewTopic,
    write: Write,
) -> None:
    assert message in failing(lambda: write(spark.range(1).selectExpr(*columns), new_topic(2), **options))


def test_no_topic_and_a_null_topic_are_said(spark: SparkSession, write: Write) -> None:
    assert "no topic is given" in failing(lambda: write(spark.range(1).selectExpr("'v' AS value")))
    frame = spark.range(1).selectExpr("'v' AS value", "cast(null AS string) AS topic")
    assert "a row has null in its topic column" in failing(lambda: write(frame))


def test_a_topic_is_never_overwritten(spark: SparkSession, new_topic: NewTopic, bootstrap_servers: str) -> None:
    writer = spark.range(1).selectExpr("'v' AS value").write.format("headwater").mode("overwrite")
    writer = writer.option("kafka.bootstrap.servers", bootstrap_servers).option("topic", new_topic())
    assert "only appended to" in failing(writer.save)


def test_a_pipelines_at_least_once_sink_keeps_timestamps(
    spark: SparkSession, new_topic: NewTopic, bootstrap_servers: str
) -> None:
    from headwater.pipelines.sinks.topic import write_records

    topic = new_topic(1)
    rows = [(bytearray(b"k"), bytearray(b"v"), 1_700_000_000_123)]
    frame = spark.createDataFrame(rows, "key binary, value binary, timestamp_ms bigint")
    write_records(frame, topic, bootstrap_servers)
    [message] = consume(bootstrap_servers, topic, 1, 1)
    assert (message.key(), message.value(), message.timestamp()[1]) == (b"k", b"v", 1_700_000_000_123)
