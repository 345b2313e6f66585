"""What happens under a running query: topics made anew, partitions added, records deleted by retention."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.admin import NewTopic as AdminTopic
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headwater.pipelines.datasource.errors import DataLossError
from headwater.pipelines.datasource.offsets import OffsetRange
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.datasource.reading import RangePartition, read_range
from headwater.pipelines.datasource.stream_reader import StreamReader
from tests.spark.conftest import Produce

pytestmark = pytest.mark.slow

NewTopic = Callable[..., str]
READ_ALL = ReadAllAvailable()
WAIT_S = 60


def records(count: int, partition: int = 0, size: int = 1) -> list[dict[str, Any]]:
    return [{"value": b"%d" % i * size, "partition": partition} for i in range(count)]


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def make_anew(admin: AdminClient, topic: str, partitions: int = 1) -> None:
    """Deletes a topic and creates one of that name; a broker may need a moment to forget the first."""
    admin.delete_topics([topic], request_timeout=30)[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is not deleted")
    admin.create_topics([AdminTopic(topic, partitions, 1)])[topic].result(30)
    wait_until(lambda: topic in admin.list_topics(timeout=10).topics, "the topic is not created")


@pytest.fixture
def reader_of(bootstrap_servers: str, request: pytest.FixtureRequest) -> Callable[..., StreamReader]:
    def make(topic: str, **options: Any) -> StreamReader:
        given = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
        reader = StreamReader(ReadOptions.parse({**given, **{name: str(value) for name, value in options.items()}}))
        request.addfinalizer(reader.stop)
        return reader

    return make


def rows(reader: StreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            columns: Any = batch.to_pydict()
            found += zip(columns["partition"], columns["offset"], strict=True)
    return found


@pytest.mark.parametrize("more", [3, 20])
def test_a_topic_made_anew_is_noticed_however_many_records_it_has(
    more: int, new_topic: NewTopic, produce: Produce, admin: AdminClient, reader_of: Callable[..., StreamReader]
) -> None:
    topic = new_topic(1)
    produce(topic, records(10))
    strict, lenient = reader_of(topic), reader_of(topic, failOnDataLoss="false")
    reached = strict.latestOffset(strict.initialOffset(), READ_ALL)
    assert lenient.latestOffset(lenient.initialOffset(), READ_ALL) == reached == {topic: {"0": 10}}
    make_anew(admin, topic)
    produce(topic, records(more))
    strict._discovered_s = lenient._discovered_s = float("-inf")  # new partitions, and ids, are looked for each second
    with pytest.raises(DataLossError, match="was deleted and made anew: what was not read of it before is lost"):
        strict.latestOffset(reached, READ_ALL)
    again = lenient.latestOffset(reached, READ_ALL)
    assert again == {topic: {"0": 0}}
    assert rows(lenient, reached, again) == []
    end = lenient.latestOffset(again, READ_ALL)
    assert rows(lenient, again, end) == [(0, offset) for offset in range(more)]


def test_an_available_now_run_ends_when_its_topic_is_made_anew(
    new_topic: NewTopic, produce: Produce, admin: AdminClient, reader_of: Callable[..., StreamReader]
) -> None:
    topic = new_topic(1)
    produce(topic, records(10))
    reader = reader_of(topic, failOnDataLoss="false", maxOffsetsPerTrigger=4)
    reader.prepareForTriggerAvailableNow()
    reached = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert reached == {topic: {"0": 4}}
    make_anew(admin, topic)
    produce(topic, records(30))
    reader._discovered_s = float("-inf")
    again = reader.latestOffset(reached, reader.getDefaultReadLimit())
    assert again == {topic: {"0": 0}}
    assert reader.latestOffset(again, reader.getDefaultReadLimit()) is again


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_task_planned_of_a_topic_that_was_made_anew_reads_none_of_the_new_records(
    fail: str, new_topic: NewTopic, produce: Produce, admin: AdminClient, reader_of: Callable[..., StreamReader]
) -> None:
    topic = new_topic(1)
    produce(topic, records(10))
    reader = reader_of(topic, failOnDataLoss=fail)
    [part] = reader.partitions({topic: {"0": 0}}, {topic: {"0": 10}})
    make_anew(admin, topic)
    produce(topic, records(10))
    if fail == "false":
        assert list(reader.read(part)) == []
    else:
        with pytest.raises(DataLossError, match="was deleted and made anew since this read was planned"):
            list(reader.read(part))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_task_whose_topic_is_gone_says_so(
    fail: str, new_topic: NewTopic, produce: Produce, admin: AdminClient, reader_of: Callable[..., StreamReader]
) -> None:
    topic = new_topic(1)
    produce(topic, records(10))
    reader = reader_of(topic, failOnDataLoss=fail)
    [part] = reader.partitions({topic: {"0": 0}}, {topic: {"0": 10}})
    admin.delete_topics([topic], request_timeout=30)[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is not deleted")
    if fail == "false":
        assert list(reader.read(part)) == []
    else:
        with pytest.raises(DataLossError, match=f"{topic}-0 is gone at offset 0, before 10"):
            list(reader.read(part))
    admin.create_topics([AdminTopic(topic, 1, 1)])[topic].result(30)  # the fixture deletes it


def test_partitions_added_under_a_running_query_are_read_from_their_beginning(
    spark: SparkSession,
    bootstrap_servers: str,
    new_topic: NewTopic,
    produce: Produce,
    admin: AdminClient,
    tmp_path: Path,
) -> None:
    topic = new_topic(1)
    produce(topic, records(5))
    seen: list[tuple[int, int]] = []
    options = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "startingOffsets": "latest"}
    query = (
        spark.readStream.format("headwater")
        .options(**options)
        .load()
        .select("partition", "offset")
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda frame, _: seen.extend((row.partition, row.offset) for row in frame.collect()))
        .start()
    )
    try:
        query.processAllAvailable()
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        produce(topic, records(2, 0) + records(3, 1) + records(1, 2))
        wanted = [(0, 5), (0, 6), (1, 0), (1, 1), (1, 2), (2, 0)]
        wait_until(lambda: sorted(seen) == wanted, "the new partitions are not read")
    finally:
        query.stop()


@pytest.fixture
def delete_records(admin: AdminClient) -> Iterator[Callable[[str, int], None]]:
    """Deletes the records of partition 0 before an offset, as retention does but at once."""

    def delete(topic: str, offset: int) -> None:
        partition = TopicPartition(topic, 0, offset)
        for future in admin.delete_records([partition], request_timeout=30).values():
            assert future.result(30).low_watermark == offset

    yield delete


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_deleted_before_their_task_runs_are_a_data_loss(
    fail: str,
    new_topic: NewTopic,
    produce: Produce,
    reader_of: Callable[..., StreamReader],
    delete_records: Callable[[str, int], None],
) -> None:
    topic = new_topic(1)
    produce(topic, records(100))
    reader = reader_of(topic, failOnDataLoss=fail)
    [part] = reader.partitions({topic: {"0": 10}}, {topic: {"0": 100}})
    delete_records(topic, 60)
    if fail == "false":
        assert [offset for batch in reader.read(part) for offset in batch.column(4).to_pylist()] == list(range(60, 100))
    else:
        with pytest.raises(DataLossError, match=f"{topic}-0: the offsets 10 to 59 were deleted"):
            list(reader.read(part))


def test_retention_that_races_a_task_loses_only_what_it_deleted(
    bootstrap_servers: str,
    new_topic: NewTopic,
    produce: Produce,
    delete_records: Callable[[str, int], None],
) -> None:
    topic = new_topic(1)
    produce(topic, records(400, size=1000), **{"batch.size": 20_000, "batch.num.messages": 10})
    options = ReadOptions.parse(
        {
            "kafka.bootstrap.servers": bootstrap_servers,
            "subscribe": topic,
            "failOnDataLoss": "false",
            "kafka.max.partition.fetch.bytes": "10000",
        }
    )
    offsets: list[Any] = []
    deleted = 0
    for batch in read_range(RangePartition((OffsetRange(topic, 0, 0, 400),)), options):
        offsets += batch.column(4).to_pylist()
        if offsets[-1] < 300 and offsets[-1] >= deleted:
            deleted = offsets[-1] + 100
            delete_records(topic, deleted)
    assert offsets == sorted(set(offsets))
    assert set(range(deleted, 400)) <= set(offsets)
    assert len(offsets) < 400


def test_records_deleted_before_a_restart_are_told_with_their_offsets(
    new_topic: NewTopic,
    produce: Produce,
    reader_of: Callable[..., StreamReader],
    delete_records: Callable[[str, int], None],
) -> None:
    topic = new_topic(1)
    produce(topic, records(100))
    delete_records(topic, 60)
    start, end = {topic: {"0": 10}}, {topic: {"0": 100}}
    with pytest.raises(DataLossError, match=f"{topic}-0: the offsets 10 to 59 were deleted"):
        reader_of(topic).partitions(start, end)
    lenient = reader_of(topic, failOnDataLoss="false")
    assert [repr(part) for part in lenient.partitions(start, end)] == [f"{topic}-0[60, 100)"]
    assert json.loads(json.dumps(start)) == start


def test_a_new_partition_that_has_lost_records_already_is_a_data_loss(
    new_topic: NewTopic,
    produce: Produce,
    reader_of: Callable[..., StreamReader],
    delete_records: Callable[[str, int], None],
) -> None:
    topic = new_topic(1)
    produce(topic, records(10))
    delete_records(topic, 4)
    with pytest.raises(DataLossError, match=f"{topic}-0 is new, but begins at offset 4"):
        reader_of(topic).partitions({}, {topic: {"0": 10}})
    assert rows(reader_of(topic, failOnDataLoss="false"), {}, {topic: {"0": 10}}) == [(0, at) for at in range(4, 10)]
