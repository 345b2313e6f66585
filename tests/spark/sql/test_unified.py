"""The unified table of an archived topic, on a real broker, Spark and Delta: `NAME`, `log.NAME`, `lake.NAME`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from deltalake import DeltaTable

import headwater
from headwater.pipelines.archive.archive_file import parse_archive
from headwater.pipelines.archive.running import ArchiveRun
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.seam.marks import MODE_PROPERTY
from headwater.pipelines.seam.table_offsets import SeamError, table_offsets
from headwater.pipelines.spark import jvm
from headwater.pipelines.sql.relations import Known
from headwater.pipelines.sql.statement import failed, planned_lines
from headwater.pipelines.sql.statement_errors import StatementError
from headwater.pipelines.unified.newest_offsets import newest_offsets, offsets_by_spark
from headwater.pipelines.unified.session_archives import SessionArchives
from headwater.pipelines.unified.unified_frames import UnifiedFrames
from headwater.pipelines.unified.unified_offsets import decide

pytestmark = pytest.mark.slow

JSON = """
topics:
  "@flights": {value: json, schema: flight.json}
archive:
  root: lake
  topics:
    "@flights": {}
"""
FIELDS = {"id": {"type": "integer"}, "carrier": {"type": "string"}}


class Unified:
    """A SQL lab whose topics are archived below its folder; statements know the archives from `declare` on."""

    def __init__(self, lab: Any, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.text = ""
        self.schema(FIELDS)

    def schema(self, fields: dict[str, Any]) -> None:
        (self.folder / "flight.json").write_text(json.dumps({"type": "object", "properties": fields}))

    def declare(self, text: str) -> None:
        self.text = self.lab.name(text)
        self.file = str(self.folder / "archive.yaml")
        Path(self.file).write_text(self.text)
        archives = SessionArchives.of(self.file, {})
        self.lab.with_known(archives.known(Known()), archives.frames(self.lab.spark, self.lab.servers))

    def archive(self) -> None:
        """Let the tables catch up."""
        specs, loaded = parse_archive(
            self.text, "archive.yaml", {}, str(self.folder), {}, lambda path: (self.folder / path).read_text()
        )
        run = ArchiveRun(specs, loaded, self.lab.servers, file_system)
        assert run.run_once(lambda: self.lab.spark) == []

    def flights(self, numbers: Sequence[int], partition: int = 0, **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.lab.servers})
        for n in numbers:
            value = json.dumps({"id": n, "carrier": f"C{n % 3}"} | more)
            producer.produce(self.lab.name("@flights"), value, f"k{n}", partition=partition, headers=[("n", str(n))])
        assert producer.flush(30) == 0

    def ids(self) -> list[int | None]:
        return [row[0] for row in self.lab.rows("SELECT id FROM @flights ORDER BY _partition, _offset")]

    @property
    def table(self) -> str:
        return str(self.folder / "lake" / self.lab.name("@flights"))

    def failure(self, text: str) -> str:
        with pytest.raises(StatementError) as caught:
            self.lab.rows(text)
        return caught.value.message


@pytest.fixture
def unified(lab: Any, tmp_path: Path) -> Unified:
    return Unified(lab, tmp_path)


@pytest.fixture
def half(unified: Unified) -> Unified:
    """20 archived flights in two partitions, and 10 behind them in each."""
    unified.lab.create("@flights", 2)
    unified.declare(JSON)
    for partition in range(2):
        unified.flights(range(10), partition)
    unified.archive()
    for partition in range(2):
        unified.flights(range(10, 20), partition)
    return unified


def test_a_name_is_the_table_and_the_log_behind_it_and_each_half_has_a_name(half: Unified) -> None:
    lab = half.lab
    assert half.ids() == [*range(20)] * 2
    assert lab.one("SELECT count(*) FROM lake.@flights") == 20
    assert lab.one("SELECT count(*) FROM log.@flights") == 40
    columns = ["_partition", "_offset", "_timestamp", "_key", "id", "carrier", "_headers", "_error", "_value"]
    assert lab.frame("SELECT * FROM @flights").columns == columns
    assert lab.frame("SELECT * FROM lake.@flights").schema == lab.frame("SELECT * FROM @flights").schema
    before = lab.rows("SELECT * FROM @flights ORDER BY _partition, _offset")
    half.archive()
    assert lab.rows("SELECT * FROM lake.@flights ORDER BY _partition, _offset") == before, "decoded as it is archived"
    # With nothing behind the table, the log has no part in the plan.
    frame = lab.frame("SELECT * FROM @flights")
    assert "headwater" not in jvm.physical_plan_text(frame)
    assert sorted(map(tuple, frame.collect()), key=lambda row: row[:2]) == before


@pytest.mark.parametrize("has_tail", [True, False])
def test_no_statement_changes_a_unified_table(half: Unified, has_tail: bool) -> None:
    lab = half.lab
    if not has_tail:
        half.archive()
    version = table_offsets(half.table).version  # type: ignore[union-attr]
    for text in (
        "INSERT INTO @flights SELECT * FROM lake.@flights",
        "INSERT INTO TABLE @flights TABLE @flights",
        "INSERT OVERWRITE @flights SELECT * FROM lake.@flights",
        "UPDATE @flights SET id = 2",
        "DELETE FROM @flights WHERE id = 1",
        "MERGE INTO @flights t USING (SELECT 1 AS a) s ON t.id = s.a WHEN MATCHED THEN DELETE",
    ):
        what = "is a topic and its archive's table, which statements only read: produce to the topic"
        assert half.failure(text) == f"{lab.name('@flights')} {what}"
    assert table_offsets(half.table).version == version  # type: ignore[union-attr]


def test_until_there_is_a_table_the_name_is_the_log_in_the_tables_columns(unified: Unified) -> None:
    lab = unified.lab
    lab.create("@flights", 2)
    unified.declare(JSON)
    empty = lab.frame("SELECT * FROM @flights")
    assert empty.collect() == []
    unified.flights(range(3), 1)
    before = lab.frame("SELECT * FROM @flights ORDER BY _offset")
    assert before.schema == empty.schema
    rows = before.collect()
    unified.archive()
    assert lab.frame("SELECT * FROM @flights ORDER BY _offset").collect() == rows
    assert [row.id for row in rows] == [0, 1, 2]


def test_values_that_cannot_be_decoded_are_the_rows_that_the_archive_makes_of_them(half: Unified) -> None:
    lab = half.lab
    lab.produce("@flights", [(b"k", b"no JSON"), (None, None), (b"k", b'{"id": "x"}'), (b"k", b'{"id": 7.0}')])
    query = "SELECT * FROM @flights WHERE _partition = 0 AND _offset >= 18 ORDER BY _offset"
    before = lab.rows(query)
    assert [row[7] is None for row in before] == [True, True, False, False, False, lab.rows(query)[5][7] is None]
    assert before[2][7:] == ("the value is not JSON", b"no JSON")
    assert before[0][6] == [("n", b"18")]
    half.archive()
    assert lab.rows(query.replace("@flights", "lake.@flights")) == before


def test_a_statement_reads_one_state_however_often_it_names_the_topic(
    half: Unified, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = half.lab
    decided: list[Any] = []

    def commit_behind(*given: Any) -> Any:
        """Records come, and the archive commits all of them, between the decision and the reading."""
        decided.append(decide(*given))
        half.flights(range(20, 25), 0)
        half.archive()
        return decided[-1]

    monkeypatch.setattr(f"{UnifiedFrames.__module__}.decide", commit_behind)
    text = "FROM @flights a FULL JOIN @flights b ON a._partition = b._partition AND a._offset = b._offset"
    assert lab.rows(f"SELECT count(*), count(a.id), count(b.id) {text}") == [(40, 40, 40)]
    assert len(decided) == 1
    cte = "WITH c AS (SELECT * FROM @flights) SELECT (SELECT count(*) FROM c), (SELECT count(*) FROM c WHERE id < 5)"
    assert lab.rows(cte) == [(45, 10)]
    assert lab.rows("SELECT count(*), (SELECT count(*) FROM @flights WHERE _partition = 0) FROM @flights") == [(50, 30)]
    lab.rows("CREATE TABLE @copy USING delta AS SELECT * FROM @flights")
    assert lab.one("SELECT count(*) FROM @copy") == 55
    assert lab.one("SELECT count(DISTINCT _partition, _offset) FROM @copy") == 55


def test_a_version_that_a_commit_outdates_is_decided_again(half: Unified, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta refuses a version that is old, as that of an idle table is, from the next commit on."""
    lab = half.lab
    retention = "delta.deletedFileRetentionDuration"
    lab.rows(f"ALTER TABLE delta.`{half.table}` SET TBLPROPERTIES ('{retention}' = 'interval 0 seconds')")
    decided: list[Any] = []

    def commit_behind(*given: Any) -> Any:
        decided.append(decide(*given))
        if len(decided) == 1:
            half.flights(range(20, 25), 0)
            half.archive()
        return decided[-1]

    monkeypatch.setattr(f"{UnifiedFrames.__module__}.decide", commit_behind)
    assert lab.rows("SELECT count(*), count(DISTINCT _partition, _offset) FROM @flights") == [(45, 45)]
    assert len(decided) == 2


def test_commits_and_compaction_between_decision_and_reading_double_or_lose_nothing(half: Unified) -> None:
    lab = half.lab
    frame = headwater.table(lab.spark, lab.name("@flights"), bootstrap_servers=lab.servers, archive=half.file)
    half.archive()
    table = DeltaTable(half.table)
    table.optimize.compact()
    half.flights(range(20, 30), 1)
    half.archive()
    for _ in range(2):
        assert frame.count() == 40
        assert frame.where("_partition = 0").count() == 20
        assert frame.select("_partition", "_offset").distinct().count() == 40
    again = headwater.table(lab.spark, lab.name("@flights"), bootstrap_servers=lab.servers, archive=half.file)
    assert again.count() == 50


def test_each_record_is_there_once_while_the_archive_commits(half: Unified) -> None:
    lab = half.lab
    sent, ends = 40, threading.Event()

    def go_on() -> None:
        nonlocal sent
        while not ends.is_set():
            half.flights(range(5), 0)
            sent += 5
            half.archive()

    archiving = threading.Thread(target=go_on)
    archiving.start()
    try:
        seen = 0
        while seen < 40 + 5 * 6:
            least = sent
            query = "SELECT count(*), count(DISTINCT _partition, _offset), max(_offset) FROM @flights"
            ((rows, places, last),) = lab.rows(query)
            assert rows == places == last + 1 + 20
            assert rows >= least
            seen = rows
    finally:
        ends.set()
        archiving.join(120)


def test_aborted_transactions_are_in_neither_half(half: Unified) -> None:
    lab = half.lab
    name = lab.name("@flights")
    producer = Producer({"bootstrap.servers": lab.servers, "transactional.id": f"{name}-t"})
    producer.init_transactions(30)
    for number, commits in ((100, False), (101, True), (102, False)):
        producer.begin_transaction()
        producer.produce(name, json.dumps({"id": number}), partition=0)
        producer.flush(30)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
    expected = [*range(20), 101, *range(20)]
    assert half.ids() == expected
    half.archive()
    assert half.ids() == expected
    producer.begin_transaction()
    producer.produce(name, json.dumps({"id": 103}), partition=0)
    producer.flush(30)
    assert half.ids() == expected, "an open transaction is beyond the end"
    producer.abort_transaction(30)


def test_partitions_that_are_added_begin_with_their_log(half: Unified) -> None:
    lab = half.lab
    client = AdminClient({"bootstrap.servers": lab.servers})
    client.create_partitions([NewPartitions(lab.name("@flights"), 3)])[lab.name("@flights")].result(60)
    half.flights(range(100, 103), 2)
    assert half.ids() == [*range(20), *range(20), 100, 101, 102]
    half.archive()
    assert half.ids() == [*range(20), *range(20), 100, 101, 102]


def test_a_column_that_one_half_lacks_is_null_there(half: Unified) -> None:
    lab = half.lab
    half.schema(FIELDS | {"delay": {"type": "number"}})
    half.declare(JSON.replace("root: lake", "root: lake\n  merge_schema: true"))
    half.flights([20], 1, delay=2.5)
    query = "SELECT id, delay FROM @flights WHERE delay IS NOT NULL OR id IN (0, 19)"
    expected = [(0, None), (0, None), (19, None), (19, None), (20, 2.5)]
    assert sorted(lab.rows(query), key=repr) == expected
    half.archive()
    assert sorted(lab.rows(query), key=repr) == expected
    # Records without the column again: it is the table's.
    half.schema({"id": {"type": "integer"}})
    half.declare(JSON)
    half.flights([21], 1)
    assert lab.rows("SELECT id, carrier, delay FROM @flights WHERE id > 19 ORDER BY id") == [
        (20, "C2", 2.5), (21, None, None),
    ]  # fmt: skip
    half.schema({"id": {"type": "string"}})
    half.declare(JSON)
    assert "column id was long and is string now in the table" in half.failure("SELECT * FROM @flights")


def test_a_topic_that_was_made_anew_is_refused_with_table_and_ids(half: Unified) -> None:
    lab = half.lab
    [old] = {table_offsets(half.table).topic_id}  # type: ignore[union-attr]
    lab.admin.delete_topics([lab.name("@flights")])
    lab.create("@flights", 2)
    half.flights(range(3), 0)
    told = half.failure("SELECT * FROM @flights")
    assert f"the table {half.table} is the archive of topic {lab.name('@flights')} with the id {old}" in told
    assert "a topic that was made anew needs another table" in told
    assert lab.name("log.@flights has the log alone, lake.@flights the table") in told
    assert lab.one("SELECT count(*) FROM log.@flights") == 3
    assert lab.one("SELECT count(*) FROM lake.@flights") == 20
    with pytest.raises(StatementError, match="made anew"):
        headwater.table(lab.spark, lab.name("@flights"), bootstrap_servers=lab.servers, archive=half.file)
    # A table of the catalog that has the topic's name is not read in its stead.
    lab.rows("CREATE TABLE default.@flights USING delta AS SELECT 1 AS one")
    assert "made anew" in half.failure("SELECT * FROM @flights")


def test_a_table_that_is_no_archives_is_refused(unified: Unified) -> None:
    lab = unified.lab
    lab.create("@flights")
    unified.declare(JSON)
    lab.spark.range(3).write.format("delta").save(unified.table)
    assert f"the table {unified.table} was not made by an archive" in unified.failure("SELECT * FROM @flights")
    assert lab.one("SELECT count(*) FROM lake.@flights") == 3


def test_a_gap_between_table_and_log_is_refused_or_left_out_as_declared(half: Unified) -> None:
    lab = half.lab
    client = AdminClient({"bootstrap.servers": lab.servers})
    [deleted] = client.delete_records([TopicPartition(lab.name("@flights"), 0, 15)]).values()
    deleted.result(60)
    told = half.failure("SELECT count(*) FROM @flights")
    assert f"the offsets 10 to 14 of {lab.name('@flights-0')} were deleted by retention" in told
    assert half.table in told
    half.declare(JSON.replace("root: lake", "root: lake\n  on_gap: record"))
    assert half.ids() == [*range(10), *range(15, 20), *range(20)]
    half.archive()
    assert half.ids() == [*range(10), *range(15, 20), *range(20)]


def test_a_topic_made_anew_or_records_deleted_before_a_frame_is_read_end_it(half: Unified) -> None:
    lab = half.lab
    frame: Callable[[], Any] = lambda: headwater.table(  # noqa: E731
        lab.spark, lab.name("@flights"), bootstrap_servers=lab.servers, archive=half.file
    )
    one, two = frame(), frame()
    client = AdminClient({"bootstrap.servers": lab.servers})
    [deleted] = client.delete_records([TopicPartition(lab.name("@flights"), 0, 15)]).values()
    deleted.result(60)
    with pytest.raises(Exception, match=r"the offsets 10 to 14 were deleted \(by retention\) before they were read"):
        one.count()
    lab.admin.delete_topics([lab.name("@flights")])
    lab.create("@flights", 2)
    for partition in range(2):
        half.flights(range(30), partition)
    with pytest.raises(Exception, match="was deleted and made anew"):
        two.count()


def decoded_alike(unified: Unified, topic: str) -> list[tuple[Any, ...]]:
    """The rows of a topic, which are the same before and after they are archived."""
    query = f"SELECT * FROM {topic} ORDER BY _partition, _offset"
    before: list[tuple[Any, ...]] = unified.lab.rows(query)
    unified.archive()
    assert unified.lab.rows(query.replace("FROM ", "FROM lake.")) == before == unified.lab.rows(query)
    return before


def test_avro_is_decoded_by_its_registered_schema_with_headers(unified: Unified, registry: Any, schemas: Any) -> None:
    import fastavro
    from confluent_kafka.schema_registry import Schema

    lab = unified.lab
    lab.create("@orders")
    record = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
    number = schemas.register_schema(lab.name("@orders-value"), Schema(json.dumps(record), "AVRO"))
    unified.declare(
        f"registry: {{url: {registry.url}}}\ntopics: {{'@orders': {{value: avro, schema: registry}}}}\n"
        "archive: {root: lake, topics: {'@orders': }}"
    )
    producer = Producer({"bootstrap.servers": lab.servers})
    for n in range(5):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, record, {"id": n})
        framed = b"\0" + number.to_bytes(4, "big") + body.getvalue()
        producer.produce(lab.name("@orders"), framed, headers=[("n", str(n)), ("none", None), ("n", b"\xff")])
    producer.produce(lab.name("@orders"), b"not framed", headers=[("x", "")])
    assert producer.flush(30) == 0
    rows = decoded_alike(unified, "@orders")
    assert [row[4] for row in rows] == [0, 1, 2, 3, 4, None]
    assert rows[3][5] == [("n", b"3"), ("none", None), ("n", b"\xff")]
    assert rows[5][5] == [("x", b"")]
    assert rows[5][6] is not None


def test_event_types_that_a_header_names_are_decoded_beside_it(unified: Unified) -> None:
    lab = unified.lab
    lab.create("@events")
    unified.declare(
        "topics: {'@events': {value: json, event_type: {header: type}, "
        "events: {flight: {schema: flight.json}, other: {schema: flight.json}}}}\n"
        "archive: {root: lake, topics: {'@events': }}"
    )
    producer = Producer({"bootstrap.servers": lab.servers})
    for n, kind in enumerate(("flight", "other", "unknown")):
        producer.produce(lab.name("@events"), json.dumps({"id": n}), headers=[("type", kind)])
    producer.produce(lab.name("@events"), json.dumps({"id": 3}))
    assert producer.flush(30) == 0
    rows = decoded_alike(unified, "@events")
    assert [row[4] for row in rows] == ["flight", "other", None, None]
    assert [row[7] for row in rows] == [[("type", b"flight")], [("type", b"other")], [("type", b"unknown")], None]


def test_in_a_table_by_key_the_last_record_behind_it_replaces_the_row_and_a_tombstone_deletes_it(half: Unified) -> None:
    lab = half.lab
    # Ten keys in each partition; the records behind the table have ten others.
    lab.spark.sql(f"ALTER TABLE delta.`{half.table}` SET TBLPROPERTIES ('{MODE_PROPERTY}' = 'upsert')")
    assert half.ids() == [*range(20)] * 2
    half.flights([3, 3, 15], 0, carrier="new")
    lab.produce("@flights", [(b"k4", None), (b"k5", None), (b"k5", b'{"id": 500}'), (b"k6", b"no JSON")], 0)
    lab.produce("@flights", [(b"k7", None)], 1)
    rows = lab.rows("SELECT _key, id, carrier, _error, _offset FROM @flights WHERE _partition = 0")
    found = {row[0]: row[1:] for row in rows}
    assert len(rows) == len(found) == 19
    assert found[b"k2"] == (2, "C2", None, 2)
    assert found[b"k3"] == (3, "new", None, 21)
    assert found[b"k15"] == (15, "new", None, 22)
    assert b"k4" not in found
    assert found[b"k5"] == (500, None, None, 25)
    assert found[b"k6"] == (None, None, "the value is not JSON", 26)
    assert lab.one("SELECT count(*) FROM @flights WHERE _partition = 1") == 19
    assert lab.one("SELECT count(*) FROM @flights WHERE _partition = 1 AND _key = CAST('k7' AS BINARY)") == 0
    assert lab.one("SELECT count(*) FROM @flights WHERE _offset < 10 AND carrier = 'new'") == 0
    both = "SELECT count(*) FROM @flights a JOIN @flights b USING (_partition, _offset)"
    assert lab.one(both) == 38


def test_a_statement_over_a_table_by_key_keeps_the_tail_that_the_log_forgets(half: Unified) -> None:
    lab = half.lab
    lab.spark.sql(f"ALTER TABLE delta.`{half.table}` SET TBLPROPERTIES ('{MODE_PROPERTY}' = 'upsert')")
    half.flights([3], 0, carrier="new")
    lab.produce("@flights", [(b"k4", None)], 0)
    frame = lab.frame("SELECT _key, id, carrier FROM @flights WHERE _partition = 0")
    before = sorted(frame.collect())
    # As compaction does once later records of these keys have come.
    admin = AdminClient({"bootstrap.servers": lab.servers})
    for deleted in admin.delete_records([TopicPartition(lab.name("@flights"), 0, 22)]).values():
        deleted.result(60)
    assert sorted(frame.collect()) == before
    found = {row[0]: row[1:] for row in before}
    assert (found[b"k3"], b"k4" in found, len(found)) == ((3, "new"), False, 19)


def test_before_its_first_commit_a_table_by_key_has_the_last_record_of_each_key(unified: Unified) -> None:
    lab = unified.lab
    lab.create("@texts")
    unified.declare('topics: {"@texts": {value: string}}\narchive: {root: lake, mode: upsert, topics: {"@texts": }}')
    lab.produce("@texts", [(b"a", b"a1"), (b"b", b"b1"), (b"a", b"a2"), (b"b", None)])
    before = lab.rows("SELECT * FROM @texts")
    assert [row[1:5] for row in before] == [(2, before[0][2], b"a", "a2")]
    # As a stream each record is a row, from a time on as well.
    long_ago = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
    where = {"bootstrap_servers": lab.servers, "archive": unified.file}
    stream = headwater.stream(lab.spark, lab.name("@texts"), start=long_ago, **where)
    found: list[Any] = []
    query = stream.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect())).trigger(availableNow=True)
    query.option("checkpointLocation", str(unified.folder / "checkpoint")).start().awaitTermination()
    assert sorted(row["_offset"] for row in found) == [0, 1, 2, 3]
    unified.archive()
    assert lab.rows("SELECT * FROM @texts") == before
    lab.produce("@texts", [(None, b"x"), (None, b"y")])
    what = f"{lab.name('@texts')}-0 has a record without a key at offset "
    assert what in unified.failure("SELECT * FROM @texts")


@pytest.mark.parametrize(
    ("value", "raw", "values"),
    [("raw", False, [b"a2", b"b"]), ("string", False, ["a2", "b"]), ("string", True, ["a2", "b"])],
)
def test_tombstones_of_values_without_columns_delete_their_keys(
    unified: Unified, value: str, raw: bool, values: list[Any]
) -> None:
    lab = unified.lab
    lab.create("@texts")
    declared = f'topics: {{"@texts": {{value: {value}}}}}'
    unified.declare(f'{declared}\narchive: {{root: lake, raw: {str(raw).lower()}, topics: {{"@texts": }}}}')
    lab.produce("@texts", [(b"a", b"a1"), (b"b", b"b"), (b"c", b"c")])
    unified.archive()
    table = unified.folder / "lake" / lab.name("@texts")
    lab.spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('{MODE_PROPERTY}' = 'upsert')")
    lab.produce("@texts", [(b"a", b"a2"), (b"c", None), (b"d", b"d"), (b"d", None)])
    assert sorted(row[0] for row in lab.rows("SELECT value FROM @texts")) == values


def test_spark_and_delta_rs_read_the_same_offsets_of_a_table(half: Unified) -> None:
    by_spark = offsets_by_spark(half.lab.spark, half.table)
    assert by_spark is not None
    assert by_spark.ends == {0: 10, 1: 10}
    for path in (half.table, f"file://{half.table}"):
        found = newest_offsets(half.lab.spark, path)
        assert found is not None
        assert dataclasses.replace(found, committed_ms=0) == dataclasses.replace(by_spark, committed_ms=0)
    assert offsets_by_spark(half.lab.spark, f"{half.table}-none") is None
    half.lab.spark.range(1).write.format("delta").save(f"{half.table}-other")
    with pytest.raises(SeamError, match="was not made by an archive"):
        offsets_by_spark(half.lab.spark, f"{half.table}-other")
    with pytest.raises(SeamError, match="cannot be read"):
        newest_offsets(half.lab.spark, "nothing://host/table")


def test_files_that_are_gone_are_one_message_with_table_and_version(half: Unified) -> None:
    lab = half.lab
    version = table_offsets(half.table).version  # type: ignore[union-attr]
    for file in Path(half.table).glob("*.parquet"):
        file.unlink()
    text = "SELECT sum(id) FROM @flights"
    with pytest.raises(Exception) as caught:
        lab.rows(text)
    told = failed(caught.value, lab.relations, lab.statement(text))
    what = f"version {version} of the table {half.table}, up to the offsets {{0: 10, 1: 10}}, lost files while"
    assert what in told.message
    assert "\n" not in told.message


def test_filters_reach_both_halves_and_explain_shows_the_state(half: Unified) -> None:
    lab = half.lab
    version = table_offsets(half.table).version  # type: ignore[union-attr]
    text = "SELECT * FROM @flights WHERE _partition = 1 AND _offset >= 15"
    told = planned_lines(lab.spark, lab.relations, lab.statement(f"EXPLAIN {text}"))
    assert told == [
        f"{lab.name('@flights')}: version {version} of {half.table}",
        lab.name("@flights-0: offsets 10 to 19 (10) behind the table"),
        lab.name("@flights-1: offsets 10 to 19 (10) behind the table"),
        lab.name("@flights-1: offsets 15 to 19 (5)"),
    ]
    plan = jvm.physical_plan_text(lab.frame(text))
    assert "EqualTo(_partition,1)" in plan
    assert "GreaterThanOrEqual(_offset,15)" in plan
    assert len(lab.rows(text)) == 5
    moment = lab.one("SELECT max(_timestamp) FROM @flights")
    late = f"SELECT * FROM @flights WHERE _timestamp > TIMESTAMP_MILLIS({int(moment.timestamp() * 1000) + 1})"
    told = planned_lines(lab.spark, lab.relations, lab.statement(f"EXPLAIN {late}"))
    assert len(told) == 3, "no range of the log is left"
    assert "GreaterThan(_timestamp," in jvm.physical_plan_text(lab.frame(late))


def test_headwater_table_and_sql_read_the_unified_table_and_the_topic_has_its_name(half: Unified) -> None:
    lab = half.lab
    given: dict[str, Any] = {"bootstrap_servers": lab.servers, "archive": half.file}
    name = lab.name("@flights")
    assert headwater.table(lab.spark, name, **given).count() == 40
    assert headwater.table(lab.spark, f"log.{name}", **given).count() == 40
    assert headwater.table(lab.spark, f"log.{name}", **given).columns[-1] == "headers"
    assert headwater.table(lab.spark, f"lake.{name}", **given).count() == 20
    assert headwater.table(lab.spark, name, bootstrap_servers=lab.servers).columns[0] == "key", "without archives"
    query = f"SELECT a.id FROM {name} a JOIN {name} b USING (_partition, _offset) WHERE a.id >= :low"
    assert headwater.sql(lab.spark, query, {"low": 18}, **given).count() == 4


def test_the_command_reads_it_by_the_file_of_its_archives(half: Unified) -> None:
    statements = half.lab.name("SELECT count(*) AS n FROM @flights; SELECT count(*) AS n FROM lake.@flights")
    command = ["sql", "-b", half.lab.servers, "--archive", half.file, "-o", "jsonl", "-e", statements]
    done = subprocess.run(
        [sys.executable, "-m", "headwater", *command],
        capture_output=True, text=True, timeout=300, cwd=half.folder, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"n": 40}, {"n": 20}]


def test_without_a_broker_the_table_alone_is_not_taken_for_the_whole(half: Unified) -> None:
    lab = half.lab

    def fails() -> list[str]:
        raise ConnectionError("no broker answers")

    lab.relations.topics._list = fails
    lab.relations.topics._known_at = float("-inf")
    with pytest.raises(ConnectionError):
        lab.rows("SELECT count(*) FROM @flights")
    assert lab.one("SELECT count(*) FROM lake.@flights") == 20
