"""A compacted topic has gaps in its offsets, and batches without a record: Spark reads over them."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from tests.compaction import await_compacted
from tests.conftest import StartBroker

pytestmark = pytest.mark.slow

TOPIC = "latest"
WAIT_S = 60


def test_the_last_record_of_each_key_is_read_over_gaps_in_the_offsets(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(tmp_path / "data", properties={"log.cleaner.backoff.ms": "100"})
    admin = AdminClient({"bootstrap.servers": broker.address})
    configs = {"cleanup.policy": "compact", "segment.bytes": "100000", "min.cleanable.dirty.ratio": "0.1"}
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)])[TOPIC].result(30)
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, "batch.size": 20_000})
    expected: dict[bytes, bytes] = {}
    for number in range(20_000):
        key, value = b"key-%d" % (number * 2_654_435_761 % 2**32 >> 12 & 255), b"%d" % number
        expected[key] = value
        producer.produce(TOPIC, key=key, value=value)
    assert producer.flush(WAIT_S) == 0
    await_compacted(broker, TOPIC, 250_000)
    frame = (
        spark.read.format("headwater")
        .option("kafka.bootstrap.servers", broker.address)
        .option("subscribe", TOPIC)
        .load()
        .select("key", "value", "offset")
    )
    rows = sorted(frame.collect(), key=lambda row: int(row["offset"]))
    assert {bytes(row["key"]): bytes(row["value"]) for row in rows} == expected
    offsets = [int(row["offset"]) for row in rows]
    assert offsets[-1] == 19_999
    assert len(offsets) < 15_000
    assert all(int(row["value"]) == int(row["offset"]) for row in rows)
