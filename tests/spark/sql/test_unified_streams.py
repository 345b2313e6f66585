"""The unified table of an archived topic as a stream: its rows are those of the batch, whatever ends and restarts."""

from __future__ import annotations

import datetime as dt
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import headwater
from headwater.cli.sql.execution import ResultColumns
from headwater.cli.sql.follow import Follower, parse_from, start_of, with_history
from headwater.pipelines.seam.marks import MODE_PROPERTY
from headwater.pipelines.sql.relations import Known
from headwater.pipelines.sql.statement_errors import StatementError
from headwater.pipelines.unified.session_archives import SessionArchives
from tests.spark.sql.test_unified import FIELDS, JSON, Unified, half, unified

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["half", "unified"]

pytestmark = pytest.mark.slow

WAIT_S = 120


def trimmed(unified: Unified, ends: Mapping[int, int], topic: str = "@flights") -> None:
    """Delete from the log, as retention does."""
    parts = [TopicPartition(unified.lab.name(topic), partition, end) for partition, end in ends.items()]
    admin = AdminClient({"bootstrap.servers": unified.lab.servers})
    for future in admin.delete_records(parts, request_timeout=30).values():
        future.result(30)


def streamed(unified: Unified, topic: str = "@flights", **more: Any) -> DataFrame:
    where = {"bootstrap_servers": unified.lab.servers, "archive": unified.file}
    frame: DataFrame = headwater.stream(unified.lab.spark, unified.lab.name(topic), **(where | more))
    return frame


def run(frame: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def rows_of(frame: DataFrame, checkpoint: Path) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    run(frame, lambda batch, _: found.extend(map(tuple, batch.collect())), checkpoint)
    return sorted(found, key=lambda row: row[:2])


def require_alike(unified: Unified, topic: str = "@flights") -> list[tuple[Any, ...]]:
    """The rows of the stream, which are the batch's, in the same columns."""
    batch = unified.lab.frame(f"SELECT * FROM {topic} ORDER BY _partition, _offset")
    frame = streamed(unified, topic)
    assert [(each.name, each.dataType.simpleString()) for each in frame.schema] == [
        (each.name, each.dataType.simpleString()) for each in batch.schema
    ]
    found = rows_of(frame, unified.folder / f"checkpoint-{time.monotonic_ns()}")
    assert found == list(map(tuple, batch.collect()))
    return found


def test_stream_and_batch_have_the_same_rows_across_restarts_in_history_and_over_the_seam(half: Unified) -> None:
    half.lab.produce("@flights", [(b"bad", b"no JSON"), (b"none", None), (None, b'{"id": 7, "carrier": 8}')])
    half.archive()
    trimmed(half, {0: 23, 1: 20})
    half.flights(range(20, 30))
    half.lab.produce("@flights", [(b"bad", b"no JSON"), (b"none", None)], 1)
    target, checkpoint = str(half.folder / "target"), half.folder / "checkpoint"
    batches: list[int] = []

    def append(ends_at: int) -> Callable[[DataFrame, int], None]:
        """A sink whose driver ends before the batch of this number is written."""

        def sink(batch: DataFrame, number: int) -> None:
            if number == ends_at:
                raise RuntimeError("a driver ends here")
            batches.append(number)
            batch.write.format("delta").mode("append").save(target)

        return sink

    with pytest.raises(Exception, match="a driver ends here"):
        run(streamed(half, max_offsets_per_trigger=1), append(1), checkpoint)
    assert half.lab.spark.read.format("delta").load(target).count() < 43, "in the middle of the table's part"
    half.lab.spark.sql(f"OPTIMIZE delta.`{half.table}`")
    with pytest.raises(Exception, match="a driver ends here"):
        run(streamed(half, max_offsets_per_trigger=4), append(4), checkpoint)
    seam_crossed = half.lab.spark.read.format("delta").load(target).where("_partition = 0 AND _offset >= 23").count()
    assert seam_crossed > 0
    # The batch that is repeated was the log's; now the table has it, and the log has lost it.
    half.archive()
    trimmed(half, {0: 33, 1: 22})
    half.flights(range(30, 35), 1)
    run(streamed(half), append(-1), checkpoint)
    assert batches == list(range(len(batches)))
    query = "SELECT * FROM {} ORDER BY _partition, _offset"
    written = list(map(tuple, half.lab.spark.sql(query.format(f"delta.`{target}`")).collect()))
    assert written == half.lab.rows(query.format("@flights"))
    assert len(written) == 60


def test_aborted_transactions_are_in_neither_part_of_a_stream(half: Unified) -> None:
    name = half.lab.name("@flights")
    producer = Producer({"bootstrap.servers": half.lab.servers, "transactional.id": f"{name}-t"})
    producer.init_transactions(WAIT_S)

    def transact(*numbers: int, commits: bool) -> None:
        producer.begin_transaction()
        for number in numbers:
            producer.produce(name, json.dumps({"id": number}), partition=0)
        producer.flush(WAIT_S)
        (producer.commit_transaction if commits else producer.abort_transaction)(WAIT_S)

    for first in (100, 200):
        transact(first, first + 1, commits=False)
        transact(first + 2, commits=True)
        transact(first + 3, commits=False)
        if first == 100:
            half.archive()
            trimmed(half, {0: 26, 1: 20})
    ids = [row[4] for row in require_alike(half)]
    assert ids == [*range(20), 102, 202, *range(20)]


def test_a_watermark_drops_neither_history_nor_live_records(unified: Unified) -> None:
    lab = unified.lab
    lab.create("@flights", 2)
    unified.schema(FIELDS | {"at": {"type": "string", "format": "date-time"}})
    unified.declare(JSON)
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for first in (0, 8, 16):
        for partition in (0, 1):
            for n in range(first, first + 8):
                unified.flights([n], partition, at=(begin + dt.timedelta(hours=n)).isoformat())
        if first < 16:
            unified.archive()
    trimmed(unified, {0: 16, 1: 16})
    counts: dict[dt.datetime, int] = {}

    def add(batch: DataFrame, _: int) -> None:
        assert not {row["at"] for row in batch.collect()} & counts.keys()
        counts.update({row["at"]: row["count"] for row in batch.collect()})

    frame = streamed(unified, max_offsets_per_trigger=16).withWatermark("at", "1 hour").groupBy("at").count()
    run(frame, add, unified.folder / "checkpoint")
    batch = lab.frame("SELECT at, count(*) AS n FROM @flights GROUP BY at ORDER BY at").collect()
    # The watermark is an hour behind the last record: the groups up to it are final.
    assert counts == {row["at"]: row["n"] for row in batch[:-1]}
    assert len(counts) == 23


def test_columns_are_the_tables_and_then_those_of_a_later_schema(half: Unified) -> None:
    half.schema({"delay": {"type": "number"}, "id": {"type": "integer"}})
    half.flights(range(20, 23), 1, delay=1.5)
    half.declare(JSON)
    rows = require_alike(half)
    columns = ["_partition", "_offset", "_timestamp", "_key", "id", "carrier", "_headers", "_error", "_value", "delay"]
    assert streamed(half).columns == columns
    assert {row[9] for row in rows[-3:]} == {1.5}
    half.schema({"id": {"type": "string"}})
    half.declare(JSON)
    with pytest.raises(StatementError, match="column id was long and is string now in the table"):
        streamed(half)


@pytest.mark.parametrize(
    "declared",
    [
        "topics: {'@t': {value: string}}\narchive: {root: lake, topics: {'@t': }}",
        "topics: {'@t': {value: string}}\narchive: {root: lake, raw: true, headers: false, topics: {'@t': }}",
        "archive: {root: lake, topics: {'@t': }}",
    ],
)
def test_values_without_columns_are_alike(unified: Unified, declared: str) -> None:
    unified.lab.create("@t", 2)
    unified.declare(declared)
    assert require_alike(unified, "@t") == [], "there is no table yet, and no record"
    values: list[tuple[bytes | None, bytes | None]] = [(b"k", b"one"), (None, b"\xff"), (b"\xfe", None)]
    unified.lab.produce("@t", values)
    unified.archive()
    unified.lab.produce("@t", values)
    trimmed(unified, {0: 3}, "@t")
    assert len(require_alike(unified, "@t")) == 6


def test_avro_and_event_types_are_alike(unified: Unified, registry: Any, schemas: Any) -> None:
    import fastavro
    from confluent_kafka.schema_registry import Schema

    lab = unified.lab
    for topic in ("@orders", "@events"):
        lab.create(topic)
    record = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
    number = schemas.register_schema(lab.name("@orders-value"), Schema(json.dumps(record), "AVRO"))
    unified.declare(
        f"registry: {{url: {registry.url}}}\ntopics:\n  '@orders': {{value: avro, schema: registry}}\n"
        "  '@events': {value: json, event_type: {header: type}, "
        "events: {flight: {schema: flight.json}, other: {schema: flight.json}}}\n"
        "archive: {root: lake, topics: {'@orders': , '@events': }}"
    )
    producer = Producer({"bootstrap.servers": lab.servers})
    for is_last in (False, True):
        for n in range(3):
            body = io.BytesIO()
            fastavro.schemaless_writer(body, record, {"id": n})
            framed = b"\0" + number.to_bytes(4, "big") + body.getvalue()
            producer.produce(lab.name("@orders"), framed, headers=[("n", str(n)), ("none", None), ("n", b"\xff")])
        producer.produce(lab.name("@orders"), b"not framed")
        for n, kind in enumerate(("flight", "other", "unknown")):
            producer.produce(lab.name("@events"), json.dumps({"id": n}), headers=[("type", kind)])
        assert producer.flush(30) == 0
        if not is_last:
            unified.archive()
    trimmed(unified, {0: 4}, "@orders")
    trimmed(unified, {0: 3}, "@events")
    assert [row[4] for row in require_alike(unified, "@orders")] == [0, 1, 2, None] * 2
    assert [row[4] for row in require_alike(unified, "@events")] == ["flight", "other", None] * 2


def test_a_table_by_key_begins_at_the_logs_start_and_an_earlier_offset_is_refused(half: Unified) -> None:
    half.lab.spark.sql(f"ALTER TABLE delta.`{half.table}` SET TBLPROPERTIES ('{MODE_PROPERTY}' = 'upsert')")
    trimmed(half, {0: 4, 1: 10})
    rows = rows_of(streamed(half), half.folder / "checkpoint")
    assert [row[:2] for row in rows] == [(0, n) for n in range(4, 20)] + [(1, n) for n in range(10, 20)]
    assert streamed(half).schema.simpleString() == half.lab.frame("SELECT * FROM @flights").schema.simpleString()
    topic = half.lab.name("@flights")
    what = (
        f"the table {half.table} keeps the last record of each key: its history has no offsets, and a stream begins "
        f"at the log's start, which is offset 4 in {topic}-0; the start is 3"
    )
    with pytest.raises(StatementError) as caught:
        streamed(half, start={0: 3, 1: 10})
    assert what in str(caught.value)
    assert streamed(half, start={0: 4, 1: -2}).isStreaming
    # A time is looked up in the log: the table lacks what later records have replaced.
    rows = rows_of(streamed(half, start=dt.datetime(2000, 1, 1, tzinfo=dt.UTC)), half.folder / "long ago")
    assert [row[:2] for row in rows] == [(0, n) for n in range(4, 20)] + [(1, n) for n in range(10, 20)]


def test_a_stream_begins_at_offsets_or_a_time_of_the_history(half: Unified) -> None:
    trimmed(half, {0: 10, 1: 10})
    rows = rows_of(streamed(half, start={0: 7, 1: -1}), half.folder / "a")
    assert [row[:2] for row in rows] == [(0, n) for n in range(7, 20)]
    moment = half.lab.one("SELECT _timestamp FROM @flights WHERE _partition = 1 AND _offset = 5").astimezone(dt.UTC)
    expected = half.lab.frame("SELECT _partition, min(_offset) FROM @flights WHERE _timestamp >= :at GROUP BY 1",
                              {"at": moment}).collect()  # fmt: skip
    rows = rows_of(streamed(half, start=moment), half.folder / "b")
    assert [row[:2] for row in rows] == [(part, n) for part, first in sorted(expected) for n in range(first, 20)]
    assert rows_of(streamed(half, start=dt.datetime(2100, 1, 1, tzinfo=dt.UTC)), half.folder / "c") == []


def test_a_mistake_is_one_line(half: Unified) -> None:
    with pytest.raises(StatementError, match=r"^start: 'noon' is"):
        streamed(half, start="noon")
    with pytest.raises(StatementError, match="is a table, and streams are of topics"):
        streamed(half, "other", tables={"other": half.table})
    with pytest.raises(StatementError, match="there is no topic or table 'nothing'"):
        headwater.stream(half.lab.spark, "nothing", bootstrap_servers=half.lab.servers)
    assert streamed(half, "log.`@flights`").columns[-1] == "headers"


def test_a_followed_topic_begins_in_its_history(half: Unified) -> None:
    lab = half.lab
    trimmed(half, {0: 10, 1: 10})
    archives = SessionArchives.of(half.file, {})
    source = start_of(
        parse_from("-12"),
        with_history(lab.admin.offsets, lambda topic: archives.first_offsets(lab.spark, lab.servers, topic)),
    )
    relations = lab.with_known(archives.known(Known()), archives.arriving(lab.spark, lab.servers, source, 4))
    follower = Follower(lab.spark, relations, {})
    run_ = follower.start(lab.statement("SELECT _offset, id, _error FROM @flights WHERE _partition = 0"))
    chunks = run_.chunks()
    assert next(chunks) == ResultColumns(["_offset", "id", "_error"])
    rows: list[Any] = []
    while len(rows) < 12:
        rows += next(chunks)
    assert rows == [(n, n, None) for n in range(8, 20)]
    run_.cancel()
    assert run_.wait(WAIT_S)


def test_the_command_follows_table_and_log(half: Unified) -> None:
    trimmed(half, {0: 10, 1: 10})
    text = half.lab.name("SELECT _partition, _offset, id FROM @flights")
    command = [sys.executable, "-m", "headwater", "sql", "-b", half.lab.servers, "--archive", half.file,
               "--follow", "--from", "earliest", "-o", "jsonl", "-e", text]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            rows = [json.loads(process.stdout.readline()) for _ in range(40)]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(WAIT_S)
    found = sorted((row["_partition"], row["_offset"], row["id"]) for row in rows)
    assert found == [(partition, n, n) for partition in (0, 1) for n in range(20)]
