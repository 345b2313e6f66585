"""A topic as a stream whose history is in its archive's table, on a real broker and Spark."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from deltalake import DeltaTable

from tests.spark.pipelines.archive.conftest import Archives
from tests.spark.pipelines.archive.test_rounds import JSON, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.slow


def produce(archives: Archives, numbers: range, **more: Any) -> None:
    """Records an hour apart, in partitions by their keys."""
    archives.lab.write("flight.json", json.dumps(SCHEMA))
    times = [f"2026-01-{1 + number // 24:02}T{number % 24:02}:00:00Z" for number in numbers]
    records = [(f"k{number}", {"id": number, "at": at}) for number, at in zip(numbers, times, strict=True)]
    archives.lab.produce("@flights", records, **more)


def delete_before(archives: Archives, ends: Mapping[int, int]) -> None:
    """Delete from the log, as retention does."""
    topic = f"{archives.lab.prefix}flights"
    parts = [TopicPartition(topic, partition, end) for partition, end in ends.items()]
    admin = AdminClient({"bootstrap.servers": archives.lab.servers})
    for future in admin.delete_records(parts, request_timeout=30).values():
        future.result(30)


def stream(archives: Archives, **options: str) -> DataFrame:
    reader = archives.lab.spark.readStream.format("headwater").option("startingOffsets", "earliest")
    given = {
        "kafka.bootstrap.servers": archives.lab.servers,
        "subscribe": f"{archives.lab.prefix}flights",
        "archiveTable": str(archives.path("@flights")),
    }
    frame = reader.options(**(given | options)).load()
    both = "from_json(cast(value AS STRING), 'id BIGINT, at TIMESTAMP')"
    return frame.selectExpr(
        "partition", "offset", "key", "timestamp", "archived IS NOT NULL AS past",
        f"coalesce(archived.id, {both}.id) AS id", f"coalesce(archived.at, {both}.at) AS at",
    )  # fmt: skip


def run(archives: Archives, frame: DataFrame, sink: Callable[[DataFrame, int], None]) -> None:
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(archives.lab.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_history_that_the_log_has_lost_is_read_once_across_restarts_and_compaction(archives: Archives) -> None:
    produce(archives, range(10), partitions=2)
    archives.caught_up(JSON)
    produce(archives, range(10, 20))
    archives.caught_up(JSON)
    before = archives.lab.read("@flights")
    delete_before(archives, archives.state("@flights").ends)
    batches: list[list[Any]] = []

    def until_the_second(batch: DataFrame, _: int) -> None:
        if batches:
            raise RuntimeError("a driver ends here")
        batches.append(batch.collect())

    with pytest.raises(Exception, match="a driver ends here"):
        run(archives, stream(archives, maxOffsetsPerTrigger="1"), until_the_second)
    path = archives.path("@flights")
    archives.lab.spark.sql(f"OPTIMIZE delta.`{path}`")
    archives.lab.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    archives.lab.spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    produce(archives, range(20, 30))
    run(archives, stream(archives, maxOffsetsPerTrigger="1"), lambda batch, _: batches.append(batch.collect()))

    rows = list(itertools.chain.from_iterable(batches))
    assert sorted(row.id for row in rows) == list(range(30))
    past = {
        (row.partition, row.offset): (row.id, row.key, round(row.timestamp.timestamp() * 1000))
        for row in rows
        if row.id < 20
    }
    assert past == {(each.partition, each.offset): (each.json["id"], each.key, each.timestamp_ms) for each in before}
    assert {row.past for row in rows if row.id < 20} == {True}
    assert {row.past for row in rows if row.id >= 20} == {False}
    for partition in (0, 1):
        offsets = [row.offset for row in rows if row.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_a_watermark_drops_no_history(archives: Archives) -> None:
    for first in (0, 15):
        produce(archives, range(first, first + 15), partitions=2)
        archives.caught_up(JSON)
    delete_before(archives, archives.state("@flights").ends)
    produce(archives, range(30, 40))
    counts: dict[int, int] = {}

    def add(batch: DataFrame, _: int) -> None:
        counts.update({row.id: row["count"] for row in batch.collect()})

    # Two batches of history, and one of all live records: those of a partition alone could be ahead of the other's.
    frame = stream(archives, maxOffsetsPerTrigger="12").withWatermark("at", "1 hour")
    run(archives, frame.groupBy("at", "id").count(), add)
    # The watermark is an hour behind the last record, 39: the rows before it are final.
    assert set(range(38)) <= counts.keys()
    assert set(counts.values()) == {1}


def test_a_table_of_another_topic_is_refused(archives: Archives) -> None:
    produce(archives, range(3), partitions=2)
    archives.caught_up(JSON)
    archives.lab.produce("@others", [("k", {"id": 1})])
    with pytest.raises(Exception, match="is of topic"):
        run(archives, stream(archives, subscribe=f"{archives.lab.prefix}others"), lambda *_: None)


def test_a_table_that_no_archive_made_is_refused(archives: Archives) -> None:
    path = archives.lab.folder / "plain"
    archives.lab.spark.range(3).write.format("delta").save(str(path))
    with pytest.raises(Exception, match="was not made by an archive"):
        stream(archives, archiveTable=str(path))
    with pytest.raises(Exception, match="there is no table"):
        stream(archives, archiveTable=str(path) + "-absent")


def with_fields(fields: str) -> str:
    return f"{JSON.rstrip()} {{{fields}}}"


def ids_of(archives: Archives, frame: DataFrame) -> list[int]:
    """The ids that come to a new query."""
    found: list[int] = []
    run(archives, frame, lambda batch, _: found.extend(row.id for row in batch.collect()))
    return found


def with_a_gap(archives: Archives) -> None:
    """An archive of the records 3 to 4 and 8 to 9, which lost 5 to 7; the log has the last one, 10, alone."""
    produce(archives, range(5))
    delete_before(archives, {0: 3})
    archives.caught_up(with_fields("on_gap: record"))
    produce(archives, range(5, 10))
    delete_before(archives, {0: 8})
    archives.caught_up(with_fields("on_gap: record"))
    produce(archives, range(10, 11))
    delete_before(archives, {0: 10})
    # Delta's log may be cleaned up behind a checkpoint.
    path = archives.path("@flights")
    DeltaTable(str(path)).create_checkpoint()
    for each in (path / "_delta_log").glob("*.json"):
        each.unlink()


def test_a_gap_of_the_table_is_a_data_loss(archives: Archives) -> None:
    with_a_gap(archives)
    topic = f"{archives.lab.prefix}flights"
    what = rf"{topic}-0: the offsets 5 to 7 were deleted \(by retention\), and the archive's table .* has a gap there"
    with pytest.raises(Exception, match=f"{what}; set failOnDataLoss=false to go on without them"):
        ids_of(archives, stream(archives))
    assert ids_of(archives, stream(archives, failOnDataLoss="false")) == [3, 4, 8, 9, 10]


def test_a_start_below_the_tables_first_offset_is_a_data_loss(archives: Archives) -> None:
    with_a_gap(archives)
    topic = f"{archives.lab.prefix}flights"
    start = json.dumps({topic: {"0": 1}})
    with pytest.raises(Exception, match=f"{topic}-0: the offsets 1 to 2 were deleted"):
        ids_of(archives, stream(archives, startingOffsets=start))
    assert ids_of(archives, stream(archives, startingOffsets=start, failOnDataLoss="false")) == [3, 4, 8, 9, 10]


def test_what_the_archive_began_behind_is_read_from_the_log(archives: Archives) -> None:
    produce(archives, range(5))
    archives.caught_up(with_fields("from: latest"))
    produce(archives, range(5, 10))
    archives.caught_up(with_fields("from: latest"))
    delete_before(archives, {0: 2})
    assert ids_of(archives, stream(archives)) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_a_partition_that_is_added_archived_and_trimmed_during_a_run_is_not_lost(archives: Archives) -> None:
    produce(archives, range(4))
    archives.caught_up(JSON)
    topic = f"{archives.lab.prefix}flights"
    found: list[tuple[int, int]] = []

    def grow(batch: DataFrame, _: int) -> None:
        found.extend((row.partition, row.id) for row in batch.collect())
        if (1, 19) in found:
            query.stop()
        elif len(found) == 4:
            admin = AdminClient({"bootstrap.servers": archives.lab.servers})
            admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
            records = [("k", {"id": number, "at": "2026-01-01T00:00:00Z"}) for number in range(10, 20)]
            archives.lab.produce("@flights", records, partition=1)
            archives.caught_up(JSON)
            delete_before(archives, {0: 4, 1: 10})

    query = (
        stream(archives)
        .writeStream.foreachBatch(grow)
        .option("checkpointLocation", str(archives.lab.folder / "checkpoint"))
        .start()
    )
    assert query.awaitTermination(300)
    assert found == [(0, number) for number in range(4)] + [(1, number) for number in range(10, 20)]
