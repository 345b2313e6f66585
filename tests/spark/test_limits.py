"""How much a micro-batch, and a task, takes: minimum, maximum, delay, records a task."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from headwater.pipelines.datasource import TASK_RECORDS_OPTION, stream_reader
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.datasource.stream_reader import StreamReader
from tests.spark.conftest import Produce, ReadTopic

pytestmark = pytest.mark.slow

NewTopic = Callable[..., str]


def records(count: int, partition: int = 0) -> list[dict[str, Any]]:
    return [{"value": b"%d" % i, "partition": partition} for i in range(count)]


@pytest.fixture
def reader_of(bootstrap_servers: str, request: pytest.FixtureRequest) -> Callable[..., StreamReader]:
    def make(topic: str, **options: Any) -> StreamReader:
        given = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
        reader = StreamReader(ReadOptions.parse({**given, **{name: str(value) for name, value in options.items()}}))
        request.addfinalizer(reader.stop)
        return reader

    return make


def test_few_records_wait_for_more_after_the_first_batch(
    new_topic: NewTopic, produce: Produce, reader_of: Callable[..., StreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "IDLE_WAIT_MS", 1)
    topic = new_topic(1)
    reader = reader_of(topic, minOffsetsPerTrigger=10)
    assert reader.getDefaultReadLimit() == ReadMinRows(10)
    limit = reader.getDefaultReadLimit()
    produce(topic, records(3))
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert first == {topic: {"0": 3}}
    produce(topic, records(9))
    assert reader.latestOffset(first, limit) is first
    assert reader.latestOffset(first, ReadAllAvailable()) == {topic: {"0": 12}}
    produce(topic, records(1))
    assert reader.latestOffset(first, limit) == {topic: {"0": 13}}


def test_the_delay_bounds_the_wait(
    new_topic: NewTopic, produce: Produce, reader_of: Callable[..., StreamReader]
) -> None:
    topic = new_topic(1)
    reader = reader_of(topic, minOffsetsPerTrigger=10, maxTriggerDelay="0s")
    produce(topic, records(3))
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    produce(topic, records(1))
    assert reader.latestOffset(first, reader.getDefaultReadLimit()) == {topic: {"0": 4}}


def test_minimum_and_maximum_hold_together(
    new_topic: NewTopic, produce: Produce, reader_of: Callable[..., StreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "IDLE_WAIT_MS", 1)
    topic = new_topic(1)
    reader = reader_of(topic, minOffsetsPerTrigger=5, maxOffsetsPerTrigger=8)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(8)
    produce(topic, records(20))
    ends = [reader.initialOffset()]
    for _ in range(3):
        ends.append(reader.latestOffset(ends[-1], limit))
    # Four are left after the second batch: too few.
    assert [end[topic]["0"] for end in ends] == [0, 8, 16, 16]


def test_available_now_reads_everything_whatever_the_minimum(
    spark: SparkSession, bootstrap_servers: str, new_topic: NewTopic, produce: Produce, tmp_path: Path
) -> None:
    topic = new_topic(1)
    produce(topic, records(25))
    sizes: list[int] = []
    for limits in ({"minOffsetsPerTrigger": "7", "maxOffsetsPerTrigger": "10"}, {"minOffsetsPerTrigger": "100"}):
        frame = spark.readStream.format("headwater").options(
            **{"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"},
            **limits,
        )
        query = (
            frame.load()
            .writeStream.option("checkpointLocation", str(tmp_path / str(len(limits))))
            .trigger(availableNow=True)
            .foreachBatch(lambda rows, _: sizes.append(rows.count()))
            .start()
        )
        assert query.awaitTermination(120)
    assert sizes == [10, 10, 5, 25]


def test_records_a_task_and_least_tasks_cut_the_ranges(
    new_topic: NewTopic, produce: Produce, read_topic: ReadTopic, reader_of: Callable[..., StreamReader]
) -> None:
    topic = new_topic(2)
    produce(topic, records(100) + records(10, partition=1))
    frame = read_topic(topic, maxRecordsPerPartition=30)
    assert frame.rdd.getNumPartitions() == 5
    assert frame.count() == 110
    assert read_topic(topic, maxRecordsPerPartition=30, minPartitions=8).count() == 110
    together = read_topic(topic, **{TASK_RECORDS_OPTION: 1000})
    assert together.rdd.getNumPartitions() == 1
    assert together.count() == 110
    reader = reader_of(topic, maxRecordsPerPartition=40)
    start = {topic: {"0": 0, "1": 0}}
    plan = [repr(part) for part in reader.partitions(start, json.loads(json.dumps({topic: {"0": 100, "1": 10}})))]
    assert plan == [f"{topic}-0[0, 33)", f"{topic}-0[33, 66)", f"{topic}-0[66, 100)", f"{topic}-1[0, 10)"]
