from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic as AdminTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headwater.pipelines.datasource import stream_reader
from headwater.pipelines.datasource.errors import DataLossError, user_message
from headwater.pipelines.datasource.options import ReadOptions
from tests.spark.conftest import Produce

pytestmark = pytest.mark.slow

NewTopic = Callable[..., str]
Batches = list[list[tuple[int, int]]]


class StreamRun:
    """Runs a topic through a stream into a list: one entry a micro-batch, of (partition, offset) pairs."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str, checkpoint: Path) -> None:
        self.spark = spark
        self.bootstrap_servers = bootstrap_servers
        self.checkpoint = checkpoint
        self.batches: Batches = []

    def frame(self, topic: str, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("headwater").option("kafka.bootstrap.servers", self.bootstrap_servers)
        given = {"subscribe": topic, "startingOffsets": "earliest", **options}
        return reader.options(**{name: str(value) for name, value in given.items()}).load()

    def _collect(self, frame: DataFrame, _batch_id: int) -> None:
        self.batches.append(
            sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
        )

    def start(self, topic: str, *, available_now: bool = True, **options: Any) -> Any:
        writer = self.frame(topic, **options).writeStream.option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        return writer.foreachBatch(self._collect).start()

    def available_now(self, topic: str, **options: Any) -> Batches:
        """What one available-now run read."""
        self.batches = []
        query = self.start(topic, **options)
        assert query.awaitTermination(120)
        return self.batches

    def read_offsets(self) -> list[tuple[int, int]]:
        return sorted(pair for batch in self.batches for pair in batch)


@pytest.fixture
def stream(spark: SparkSession, bootstrap_servers: str, tmp_path: Path) -> StreamRun:
    return StreamRun(spark, bootstrap_servers, tmp_path / "checkpoint")


def records(partition: int, count: int) -> list[dict[str, Any]]:
    return [{"value": b"%d" % i, "partition": partition} for i in range(count)]


def offsets_until(**ends: int) -> list[tuple[int, int]]:
    return sorted((int(name[1:]), offset) for name, end in ends.items() for offset in range(end))


def test_limits_per_trigger_are_split_by_backlog(stream: StreamRun, new_topic: NewTopic, produce: Produce) -> None:
    topic = new_topic(2)
    produce(topic, records(0, 90) + records(1, 10))
    batches = stream.available_now(topic, maxOffsetsPerTrigger=20)
    assert [len(batch) for batch in batches] == [20] * 5
    assert [sum(partition == 0 for partition, _ in batch) for batch in batches] == [18] * 5
    assert stream.read_offsets() == offsets_until(p0=90, p1=10)


def test_a_restart_goes_on_where_the_checkpoint_ends(stream: StreamRun, new_topic: NewTopic, produce: Produce) -> None:
    topic = new_topic(2)
    produce(topic, records(0, 10) + records(1, 5))
    assert stream.available_now(topic) == [offsets_until(p0=10, p1=5)]
    assert stream.available_now(topic) == []
    produce(topic, records(1, 3))
    assert stream.available_now(topic) == [[(1, 5), (1, 6), (1, 7)]]
    committed = (stream.checkpoint / "offsets" / "1").read_text().splitlines()[-1]
    assert json.loads(committed) == {topic: {"0": 10, "1": 8}}


def test_new_partitions_are_read_from_their_beginning(
    stream: StreamRun, new_topic: NewTopic, produce: Produce, admin: Any
) -> None:
    from confluent_kafka.admin import NewPartitions

    topic = new_topic(1)
    produce(topic, records(0, 4))
    assert stream.available_now(topic) == [offsets_until(p0=4)]
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    produce(topic, records(1, 3))
    assert stream.available_now(topic) == [[(1, 0), (1, 1), (1, 2)]]


def test_a_continuous_query_reads_what_comes_and_shows_its_backlog(
    stream: StreamRun, new_topic: NewTopic, produce: Produce
) -> None:
    topic = new_topic(1)
    query = stream.start(topic, available_now=False, startingOffsets="latest")
    try:
        query.processAllAvailable()
        for _ in range(3):
            produce(topic, records(0, 5))
            query.processAllAvailable()
        assert stream.read_offsets() == offsets_until(p0=15)
        source = query.lastProgress["sources"][0]
        assert json.loads(source["latestOffset"]) == {topic: {"0": 15}}
    finally:
        query.stop()


def test_an_idle_query_waits_at_the_broker_instead_of_polling(
    new_topic: NewTopic, produce: Produce, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(2)
    produce(topic, records(0, 4))
    reader = stream_reader.StreamReader(
        ReadOptions.parse({"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic})
    )
    try:
        start = reader.initialOffset()
        assert start == {topic: {"0": 4, "1": 0}}
        asked = 0
        original = reader._ends

        def counted(*known: Any) -> Any:
            nonlocal asked
            asked += 1
            return original(*known)

        monkeypatch.setattr(reader, "_ends", counted)
        assert reader.latestOffset(start, ReadAllAvailable()) is start
        assert asked == 2
        produce(topic, records(1, 2))
        assert reader.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 4, "1": 2}}
        assert reader.reportLatestOffset() == {topic: {"0": 4, "1": 2}}
    finally:
        reader.stop()


def failure(query: Any) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(120)
    message = user_message(caught.value)
    assert message is not None, str(caught.value)
    return message


def test_a_topic_made_anew_is_a_data_loss(
    stream: StreamRun, new_topic: NewTopic, produce: Produce, admin: Any, bootstrap_servers: str
) -> None:
    topic = new_topic(2)
    produce(topic, records(0, 10) + records(1, 10))
    stream.available_now(topic)
    shrunk = json.dumps({topic: {"0": 50, "1": 10}})
    for log in ("offsets", "commits"):
        last = stream.checkpoint / log / "0"
        (stream.checkpoint / log / ".0.crc").unlink(missing_ok=True)
        lines = last.read_text().splitlines()
        if log == "offsets":
            lines[-1] = shrunk
        last.write_text("\n".join(lines))
    message = failure(stream.start(topic))
    assert f"{topic}-0 ends at offset 10, but 50 was reached before" in message
    produce(topic, records(1, 2))
    stream.available_now(topic, failOnDataLoss="false")
    assert stream.read_offsets() == [(1, 10), (1, 11)]
    produce(topic, records(0, 1))
    assert stream.available_now(topic) == [[(0, 10)]]


def test_a_topic_deleted_under_a_stream_is_a_data_loss_and_is_read_anew_when_it_comes_back(
    new_topic: NewTopic, produce: Produce, admin: Any, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "DISCOVERY_INTERVAL_S", 0.0)
    for fail in ("true", "false"):
        topic = new_topic(2)
        produce(topic, records(0, 10))
        given = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": fail}
        reader = stream_reader.StreamReader(ReadOptions.parse({"kafka.bootstrap.servers": bootstrap_servers, **given}))
        try:
            reached = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
            admin.delete_topics([topic])[topic].result(30)
            if fail == "true":
                with pytest.raises(DataLossError, match=f"{topic}-0 is gone since offset 10"):
                    reader.latestOffset(reached, ReadAllAvailable())
                admin.create_topics([AdminTopic(topic, 1, 1)])[topic].result(30)  # the fixture deletes it
                continue
            gone = reader.latestOffset(reached, ReadAllAvailable())
            assert gone == {}
            assert reader.partitions(reached, gone) == []
            assert reader.latestOffset(gone, ReadAllAvailable()) is gone
            admin.create_topics([AdminTopic(topic, 1, 1)])[topic].result(30)
            produce(topic, records(0, 3))
            back = reader.latestOffset(gone, ReadAllAvailable())
            assert back == {topic: {"0": 3}}
            assert [repr(part) for part in reader.partitions(gone, back)] == [f"{topic}-0[0, 3)"]
        finally:
            reader.stop()


def test_starting_offsets_beyond_the_end_are_told_by_their_option(
    new_topic: NewTopic, produce: Produce, bootstrap_servers: str
) -> None:
    topic = new_topic(1)
    produce(topic, records(0, 10))
    given = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic}
    given["startingOffsets"] = json.dumps({topic: {"0": 300}})
    reader = stream_reader.StreamReader(ReadOptions.parse(given))
    with pytest.raises(DataLossError, match=f"option startingOffsets: {topic}-0 ends at offset 10; 300 lies beyond"):
        reader.initialOffset()
    reader.stop()
    lenient = stream_reader.StreamReader(ReadOptions.parse({**given, "failOnDataLoss": "false"}))
    assert lenient.initialOffset() == {topic: {"0": 10}}
    lenient.stop()


def test_an_unknown_topic_ends_the_query_with_one_clear_line(stream: StreamRun) -> None:
    assert "there is no topic 'no-such-topic'" in failure(stream.start("no-such-topic"))


def test_a_stream_refuses_ending_offsets(stream: StreamRun, new_topic: NewTopic) -> None:
    assert "a stream has no end" in failure(stream.start(new_topic(), endingOffsets="latest"))


def test_a_stream_is_written_to_a_topic(
    stream: StreamRun, new_topic: NewTopic, produce: Produce, read_topic: Callable[..., DataFrame]
) -> None:
    source, target = new_topic(1), new_topic(3)
    produce(source, [{"key": b"k%d" % i, "value": b"v%d" % i} for i in range(100)])
    frame = stream.frame(source).select("key", "value")
    query = (
        frame.writeStream.format("headwater")
        .option("kafka.bootstrap.servers", stream.bootstrap_servers)
        .option("topic", target)
        .option("checkpointLocation", str(stream.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(bytes(row.value) for row in read_topic(target).collect()) == sorted(b"v%d" % i for i in range(100))
