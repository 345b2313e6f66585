"""Each kind of source, from what it reads to what a stage makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.pipelines.errors import PipelineError, PipelineFailed

pytestmark = pytest.mark.slow

STRINGS = 'topics: {"@in": {value: string}}\n'
ITEM = json.dumps(
    {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
)


def test_a_topic_is_read_from_an_offset_of_each_partition_and_from_a_moment(lab: Any) -> None:
    lab.produce("@in", [f"v{n}" for n in range(10)], timestamp=1_000)
    lab.produce("@in", ["late"], timestamp=1_767_225_600_000)
    text = (
        STRINGS
        + """\
pipeline: p
stages:
  - {name: offset, from: {topic: "@in", starting_offsets: {0: 8}}, to: {delta: lake/offset}}
  - {name: moment, from: {topic: "@in", starting_offsets: 2026-01-01T00:00:00Z}, to: {delta: lake/moment}}
  - {name: latest, from: {topic: "@in", starting_offsets: latest}, to: {topic: "@latest"}}
"""
    )
    lab.run(text)
    assert lab.delta("lake/offset", "value") == [("late",), ("v8",), ("v9",)]
    assert lab.delta("lake/moment", "value", "_offset") == [("late", 10)]
    assert lab.read("@latest") == []
    lab.produce("@in", ["new"])
    lab.run(text)
    assert lab.values("@latest") == [{"value": "new"}]
    assert len(lab.delta("lake/offset", "value")) == 4


def test_files_are_read_once_and_their_bad_lines_become_dead_letters(lab: Any) -> None:
    lab.write("item.json", ITEM)
    lab.write("in/a.json", '{"id": 1, "name": "one"}\n{"id": "x"}\n{no json\n')
    lab.write("csv/a.csv", "id;name\n1;one\n2;two\n")
    text = """\
pipeline: p
stages:
  - {name: json, from: {files: in, format: json, schema: item.json}, to: {delta: lake/json}}
  - name: csv
    from: {files: csv, format: csv, options: {sep: ;}, as: lines}
    sql: SELECT id * 10 AS tens, name FROM lines
    to: {topic: "@csv", key: name}
"""
    first = lab.run(text)
    assert lab.delta("lake/json", "id", "name") == [(1, "one")]
    (file,) = {path for (path,) in lab.delta("lake/json", "_file")}
    assert file.endswith("/in/a.json")
    assert first.totals["json"].undecodable == 2
    letters = lab.read("p.json.dead_letters")
    assert sorted(letter.value or b"" for letter in letters) == [b'{"id": "x"}', b"{no json"]
    errors = {letter.headers["headwater.error"].decode() for letter in letters}
    said, read = "the line does not fit the schema: ", "; what could be read of it: {}"
    assert errors == {f"{said}the field id is no BIGINT{read}", f"{said}it is no JSON object{read}"}
    assert {letter.headers["headwater.file"].decode() for letter in letters} == {file}
    assert lab.values("@csv") == [{"tens": 10, "name": "one"}, {"tens": 20, "name": "two"}]

    lab.write("in/b.json", '{"id": 2, "name": "two"}\n')
    lab.run(text)
    assert lab.delta("lake/json", "id") == [(1,), (2,)]
    assert len(lab.values("@csv")) == 2


def test_avro_files_are_read_with_their_own_schema_and_a_damaged_one_is_told(lab: Any) -> None:
    import datetime as dt
    import uuid
    from decimal import Decimal

    import fastavro

    schema = {
        "type": "record",
        "name": "item",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        ],
    }
    (lab.folder / "in").mkdir()
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    row = {"at": at, "price": Decimal("9.50"), "ref": uuid.UUID(int=7), "tags": {"a": [1, 2]}}
    with (lab.folder / "in" / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, [{"id": n, "name": None if n else "none", **row} for n in range(3)])
    text = """\
pipeline: avro
stages:
  - {name: s, from: {files: in, format: avro, as: f}, to: {delta: lake/avro}}
"""
    lab.run(text)
    assert lab.delta("lake/avro", "id", "name", "price", "ref", "tags") == [
        (n, None if n else "none", Decimal("9.50"), str(uuid.UUID(int=7)), {"a": [1, 2]}) for n in range(3)
    ]
    (lab.folder / "in" / "b.avro").write_bytes((lab.folder / "in" / "a.avro").read_bytes()[:-30])
    result = lab.run(text)
    assert result.totals["s"].dead_letters == 1
    (letter,) = lab.read("avro.s.dead_letters")
    assert letter.headers["headwater.file"].endswith(b"/in/b.avro")
    assert b"the file cannot be read" in letter.headers["headwater.error"]


def test_bad_lines_of_files_are_found_in_a_stage_with_state_as_well(lab: Any) -> None:
    lab.write("in/a.json", '{"id": 1, "name": "2026-01-01T00:00:00Z"}\n{no json\n')
    result = lab.run("""\
pipeline: q
stages:
  - name: s
    from: {files: in, format: json, schema: 'id BIGINT, name TIMESTAMP', watermark: {column: name, delay: 1 day}}
    steps: [{deduplicate: {by: id}}]
    to: {delta: lake/s}
""")
    assert lab.delta("lake/s", "id") == [(1,)]
    assert result.totals["s"].dead_letters == 1


def test_a_delta_table_is_read_as_rows_are_added_and_as_it_changes(lab: Any) -> None:
    lab.produce("@in", ["a", "b"])
    text = (
        STRINGS
        + """\
pipeline: p
stages:
  - name: write
    from: {topic: "@in"}
    sql: SELECT value AS id, _offset AS version FROM `@in`
    to:
      - {delta: lake/rows}
      - {delta: lake/latest, merge: {keys: id, sequence: version}, properties: {delta.enableChangeDataFeed: true}}
  - {name: added, from: {delta: lake/rows}, to: {topic: "@added", key: id}}
  - name: changed
    from: {delta: lake/latest, changes: true, starting_version: 1, as: changes}
    sql: SELECT _change_type AS change, id, version FROM changes
    to: {topic: "@changed", key: id}
"""
    )
    lab.run(text)
    assert sorted(value["id"] for value in lab.values("@added")) == ["a", "b"]
    lab.produce("@in", ["b", "c"])
    lab.run(text)
    assert sorted(value["id"] for value in lab.values("@added")) == ["a", "b", "b", "c"]
    changes = sorted((v["id"], v["change"], v["version"]) for v in lab.values("@changed"))
    assert changes == [
        ("a", "insert", 0),
        ("b", "insert", 1),
        ("b", "update_postimage", 2),
        ("b", "update_preimage", 1),
        ("c", "insert", 3),
    ]


def test_a_table_that_nobody_has_written_yet_is_an_empty_stream(lab: Any) -> None:
    lab.produce("@in", [])
    lab.run(
        STRINGS
        + """\
pipeline: p
stages:
  - {name: one, from: {topic: "@in"}, to: {delta: lake/none}}
  - {name: two, from: {delta: lake/none}, to: {topic: "@out", value: value}}
"""
    )
    assert lab.delta("lake/none", "value") == []
    assert lab.read("@out") == []


def test_a_database_is_read_as_its_column_grows(lab: Any, derby: Any) -> None:
    derby.run("CREATE TABLE orders (id INT PRIMARY KEY, shop VARCHAR(9))", "INSERT INTO orders VALUES (1,'a'),(5,'b')")
    text = """\
pipeline: p
stages:
  - name: read
    from: {jdbc: "${env:URL}", table: orders, increment: id, start: 1, as: orders, poll: 1 second}
    to: {delta: lake/orders}
"""
    environ = {"URL": derby.url}
    lab.run(text, environ=environ)
    assert lab.delta("lake/orders", "ID", "SHOP") == [(5, "b")]
    derby.run("INSERT INTO orders VALUES (3, 'too late'), (6, 'c'), (7, 'd')")
    lab.run(text, environ=environ)
    assert lab.delta("lake/orders", "ID", "SHOP") == [(5, "b"), (6, "c"), (7, "d")]
    derby.run("INSERT INTO orders VALUES (8, 'e')")

    log = lab.folder / "lake" / "orders" / "_delta_log"
    added: list[int] = []
    commits: list[int] = [0]

    def is_done() -> bool:
        commits.append(len(list(log.glob("*.json"))))
        if commits[-1] == commits[-2]:  # a query costs more than a look into the folder
            return False
        found = lab.delta("lake/orders", "ID")
        if (8,) in found and not added:
            added.append(9)
            derby.run("INSERT INTO orders VALUES (9, 'f')")
        return (9,) in found

    lab.run_until(text, is_done, environ=environ)
    assert lab.delta("lake/orders", "ID") == [(5,), (6,), (7,), (8,), (9,)]
    for path in (lab.folder / "state").rglob("*"):
        assert not path.is_file() or derby.url.encode() not in path.read_bytes(), path


def test_an_increment_that_a_crash_cut_off_is_fetched_or_moved_once(lab: Any, derby: Any) -> None:
    from headwater.pipelines.definition import JdbcSource
    from headwater.pipelines.sources.jdbc_feed import JdbcFeed

    derby.run("CREATE TABLE t (id INT)", "INSERT INTO t VALUES (1)")
    source = JdbcSource.model_validate({"jdbc": derby.url, "table": "t", "increment": "id"})
    schema = lab.spark.read.format("jdbc").option("url", derby.url).option("dbtable", "t").load().schema
    folder = lab.folder / "feed"

    def feed() -> JdbcFeed:
        made = JdbcFeed(lab.spark, source, str(folder), schema)
        made.open()
        return made

    def fetched() -> list[int]:
        files = [str(path) for path in (folder / "increments").rglob("*.parquet")]
        return sorted(row[0] for row in lab.spark.read.schema(schema).parquet(*files).collect())

    assert feed().fetch()
    derby.run("INSERT INTO t VALUES (2)")
    # Cut off before the position is written: what lies there may be half.
    cut = folder / "fetching-2"
    cut.mkdir()
    (cut / "half").write_text("")
    assert feed().fetch()
    assert not cut.exists()
    assert fetched() == [1, 2]
    # Cut off behind it: the folder only lacks its place.
    (folder / "increments" / "0000000002").rename(cut)
    assert not feed().fetch()
    assert fetched() == [1, 2]


def test_a_database_that_cannot_be_reached_is_told_without_its_password(lab: Any, derby: Any) -> None:
    derby.run("CREATE TABLE t (id INT)")
    text = """\
pipeline: p
stages:
  - {name: read, from: {jdbc: "${env:URL}", table: none, increment: id}, to: {delta: lake/x}}
"""
    with pytest.raises(PipelineError) as caught:
        lab.run(text, environ={"URL": derby.url})
    (problem,) = caught.value.problems
    assert problem.field == "stages[0].from.jdbc"
    assert "cannot read the jdbc" in problem.message
    assert derby.url not in str(caught.value)


def test_rows_made_by_spark_flow_until_the_run_is_stopped(lab: Any) -> None:
    text = 'pipeline: p\nstages:\n  - {name: ticks, from: {rate: 50, as: ticks}, to: {topic: "@ticks"}}\n'
    lab.run_until(text, lambda: any(t.name == f"{lab.prefix}ticks" for t in lab.admin.list_topics())
                  and len(lab.read("@ticks")) > 20)  # fmt: skip
    values = lab.values("@ticks")
    assert sorted(value["value"] for value in values) == list(range(len(values)))


def test_the_columns_of_json_are_found_in_the_records_that_are_there(lab: Any) -> None:
    text = """\
pipeline: p
topics: {"@in": {value: json, schema: inferred}}
stages:
  - {name: one, from: {topic: "@in"}, sql: 'SELECT id + 1 AS next, deep.x AS x FROM `@in`', to: {delta: lake/one}}
"""
    lab.produce("@in", [])
    with pytest.raises(PipelineError, match="has no records that tell its columns"):
        lab.run(text)
    lab.produce("@in", [{"id": 1}, {"id": 2, "deep": {"x": "y"}}, b"{no json"])
    lab.run(text)
    assert lab.delta("lake/one", "next", "x") == [(2, None), (3, "y")]
    assert len(lab.read("@in.dead_letters")) == 1


def test_a_broker_that_goes_away_is_told_as_a_failure_of_the_stage(lab: Any) -> None:
    lab.produce("@in", ["x"])
    runner = lab.runner(STRINGS + 'pipeline: p\nstages: [{name: s, from: {topic: "@in"}, to: {delta: lake/x}}]\n')
    runner._options = type(runner._options)("127.0.0.1:1", runner._options.state)
    with pytest.raises(PipelineFailed, match=r"127\.0\.0\.1:1"):
        runner.run()
