"""Each kind of sink, and that a micro-batch which runs again leaves each as it was."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest

from headwater.logtier.client.cluster import EARLIEST, LATEST, ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.fetcher import FetchConfig, read_partition
from headwater.logtier.records.batch import ATTRIBUTES, COMPRESSION_MASK
from headwater.logtier.records.compression import CODEC_NAMES
from headwater.pipelines.errors import PipelineError, PipelineFailed
from headwater.pipelines.sinks import jdbc

pytestmark = pytest.mark.slow

ITEM = json.dumps({
    "type": "object",
    "properties": {
        "id": {"type": "integer"}, "v": {"type": "integer"}, "name": {"type": "string"}, "gone": {"type": "boolean"}
    },
})  # fmt: skip
HEAD = 'pipeline: p\ntopics: {"@in": {value: json, schema: item.json}}\nstages:\n'


def item(number: int, version: int, name: str = "", *, gone: bool = False) -> tuple[str, dict[str, Any]]:
    return str(number), {"id": number, "v": version, "name": name, "gone": gone}


@pytest.fixture
def items(lab: Any) -> Any:
    lab.write("item.json", ITEM)
    return lab


MERGES = (
    HEAD
    + """\
  - name: s
    from: {topic: "@in", as: i}
    to:
      - {delta: lake/latest, merge: {keys: id, sequence: v, delete_when: gone}}
      - {delta: lake/arrived, merge: {keys: id, delete_when: gone}}
      - {delta: lake/history, merge: {keys: id, sequence: v, delete_when: gone, scd: 2}}
"""
)


def test_a_merge_keeps_the_latest_state_the_last_to_arrive_or_every_state_whatever_the_order(items: Any) -> None:
    def tables() -> list[list[tuple[Any, ...]]]:
        columns = ("id", "name", "_valid_from", "_valid_to", "_current")
        return [
            items.delta("lake/latest", "id", "v", "name"),
            items.delta("lake/arrived", "id", "v", "name"),
            items.delta("lake/history", *columns),
        ]

    items.produce(
        "@in", [item(1, 10, "a"), item(1, 30, "c"), item(2, 10, "x"), item(2, 20, gone=True), item(4, 3, "d")]
    )
    items.run(MERGES)
    assert tables() == [
        [(1, 30, "c"), (4, 3, "d")],
        [(1, 30, "c"), (4, 3, "d")],
        [(1, "a", 10, 30, False), (1, "c", 30, None, True), (2, "x", 10, 20, False), (4, "d", 3, None, True)],
    ]
    # Between two states, before the first, after a delete, a second delete, and a later one of the same moment.
    items.produce("@in", [
        item(1, 20, "b"), item(2, 5, "w"), item(2, 40, "y"), item(1, 40, gone=True), item(1, 30, "o"), item(3, 1, "n"),
        item(4, 2, "old"),
    ])  # fmt: skip
    items.run(MERGES)
    expected = [
        [(2, 40, "y"), (3, 1, "n"), (4, 3, "d")],
        [(1, 30, "o"), (2, 40, "y"), (3, 1, "n"), (4, 2, "old")],
        [
            (1, "a", 10, 20, False), (1, "b", 20, 30, False), (1, "o", 30, 40, False),
            (2, "w", 5, 10, False), (2, "x", 10, 20, False), (2, "y", 40, None, True), (3, "n", 1, None, True),
            (4, "d", 3, None, True), (4, "old", 2, 3, False),
        ],
    ]  # fmt: skip
    assert tables() == expected
    items.repeat_last_batch("p", "s")
    items.run(MERGES)
    assert tables() == expected


def test_a_new_column_flows_into_the_table_unless_the_sink_forbids_it(items: Any) -> None:
    def run(sql: str, added: str = "", merged: str = "") -> None:
        items.run(
            HEAD
            + f"""\
  - name: s
    from: {{topic: "@in", as: i}}
    sql: {sql}
    to: [{{delta: lake/added{added}}}, {{delta: lake/merged, merge: {{keys: id, sequence: v}}{merged}}}]
"""
        )

    tables = ("lake/added", "lake/merged")
    items.produce("@in", [item(1, 1)])
    run("SELECT id, v FROM i")
    items.produce("@in", [item(2, 1)])
    run("SELECT id, v, id * 2 AS twice FROM i")
    assert [items.delta(table, "id", "twice") for table in tables] == [[(1, None), (2, 4)]] * 2
    items.produce("@in", [item(3, 1)])
    with pytest.raises(PipelineFailed):
        run("SELECT id, v, id AS more FROM i", added=", merge_schema: false")
    with pytest.raises(PipelineFailed):
        run("SELECT id, v, id AS more FROM i", merged=", merge_schema: false")
    columns = [items.spark.read.format("delta").load(str(items.folder / table)).columns for table in tables]
    assert ["more" in names for names in columns] == [True, False]


def test_a_table_has_its_properties_partitions_or_clusters(items: Any) -> None:
    items.produce("@in", [item(1, 1), item(2, 2)])
    items.run(
        HEAD
        + """\
  - name: s
    from: {topic: "@in", as: i}
    to:
      - {delta: lake/parts, partition_by: [id % 2 AS odd], properties: {delta.appendOnly: true}}
      - {delta: lake/clusters, cluster_by: [id]}
"""
    )
    found = {
        name: items.spark.sql(f"DESCRIBE DETAIL delta.`{items.folder}/lake/{name}`").first().asDict()
        for name in ("parts", "clusters")
    }
    assert found["parts"]["partitionColumns"] == ["odd"]
    assert found["parts"]["properties"]["delta.appendOnly"] == "true"
    assert found["clusters"]["clusteringColumns"] == ["id"]
    assert items.delta("lake/parts", "id", "odd") == [(1, 1), (2, 0)]


FORMS = ("json", "csv", "parquet", "orc")


def test_files_appear_once_however_often_a_batch_runs(items: Any) -> None:
    items.produce("@in", [item(n, n, f"n{n}") for n in range(5)])
    sinks = [f"{{files: out/{form}, format: {form}, partition_by: [id % 2 AS odd]}}" for form in FORMS]
    text = f"""{HEAD}\
  - name: s
    from: {{topic: "@in", as: i, max_offsets_per_trigger: 2}}
    to: [{", ".join(sinks)}]
"""
    items.run(text)
    out = items.folder / "out"

    def rows(form: str) -> list[tuple[Any, ...]]:
        reader = items.spark.read.format(form).option("header", "true").option("inferSchema", "true")
        return sorted(tuple(row) for row in reader.load(str(out / form)).select("id", "name", "odd").collect())

    def names() -> list[str]:
        return sorted(str(path.relative_to(out)) for path in out.rglob("batch-*"))

    expected = {form: [(n, f"n{n}", n % 2) for n in range(5)] for form in FORMS}
    before = names()
    items.repeat_last_batch("p", "s")
    items.run(text)
    assert ({form: rows(form) for form in FORMS}, names()) == (expected, before)
    for form in FORMS:
        hidden = [path for path in (out / form / "_headwater").rglob("*") if path.is_file() and path.name[0] != "."]
        assert [path.name for path in hidden] == ["committed-2"]


def test_no_files_are_written_into_a_delta_table(items: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = items.folder / "lake" / "t"
    items.spark.range(3).write.format("delta").save(str(table))
    before = sorted(table.iterdir())
    items.produce("@in", [item(1, 1)])
    text = f"{HEAD}  - {{name: s, from: {{topic: '@in', as: i}}, to: {{files: lake/t, format: parquet}}}}\n"
    with pytest.raises(PipelineError) as refused:
        items.run(text)
    [problem] = refused.value.problems
    assert (problem.field, problem.hint) == ("stages[0].to.files", "name another folder")
    assert problem.message.startswith(f"{table} is a Delta table")
    # One that was made when the run had looked is found by the first batch.
    monkeypatch.setattr("headwater.pipelines.engine.runner.refused_targets", lambda *_: ())
    with pytest.raises(PipelineFailed, match=r"stage s: .*/lake/t is a Delta table, .* name another folder"):
        items.run(text)
    assert sorted(table.iterdir()) == before


def test_files_that_a_crash_left_between_two_names_are_moved_by_the_next_run(items: Any) -> None:
    from headwater.pipelines.definition import FilesSink
    from headwater.pipelines.file_systems.local import LocalFiles
    from headwater.pipelines.sinks import files

    sink = FilesSink(files="out", format="json")
    rows = items.spark.createDataFrame([(n,) for n in range(4)], "id INT").repartition(2)
    out = str(items.folder / "out")

    def found() -> list[int]:
        return sorted(row[0] for row in items.spark.read.schema("id INT").json(out).collect())

    steps = {name: getattr(LocalFiles, name) for name in ("replace", "rename")}
    for cut_after in range(4):  # the plan, two files, the note that all are there
        left = [cut_after]

        def cut(name: str, left: list[int] = left) -> Any:
            def call(self: Any, *given: Any) -> None:
                if not left[0]:
                    raise KeyboardInterrupt
                left[0] -= 1
                steps[name](self, *given)

            return call

        with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
            for name in steps:
                patched.setattr(LocalFiles, name, cut(name))
            files.write(rows, sink, out, f"app-{cut_after}", 7)
        files.write(rows, sink, out, f"app-{cut_after}", 7)
        files.write(rows, sink, out, f"app-{cut_after}", 7)
        assert found() == sorted(list(range(4)) * (cut_after + 1))


JDBC = (
    HEAD
    + """\
  - name: s
    from: {topic: "@in", as: i}
    sql: SELECT id, name, v, gone, _topic, _partition, _offset FROM i
    to: {jdbc: "${env:URL}", table: items, MORE}
"""
)


def test_rows_replace_those_of_their_key_and_deletes_remove_them(items: Any, derby: Any) -> None:
    text = JDBC.replace("MORE", "keys: id, sequence: v, delete_when: gone")
    # A table of the database's own, with names in its own case.
    derby.run(
        "CREATE TABLE items (id BIGINT PRIMARY KEY, name VARCHAR(20), v BIGINT, gone BOOLEAN, more INT)",
        "INSERT INTO items VALUES (9, 'kept', 0, false, 7), (1, 'before', 0, false, 7)",
    )
    items.produce("@in", [item(1, 2, "b"), item(1, 1, "a"), item(2, 1, "x"), item(3, 1, gone=True)])
    items.run(text, environ={"URL": derby.url})
    query = "SELECT id, name, more FROM items"
    assert derby.rows(query) == [(1, "b", None), (2, "x", None), (9, "kept", 7)]
    items.produce("@in", [item(2, 2, gone=True), item(1, 3, "c")])
    items.run(text, environ={"URL": derby.url})
    assert derby.rows(query) == [(1, "c", None), (9, "kept", 7)]


INDEXES = "SELECT conglomeratename FROM sys.sysconglomerates WHERE isindex AND conglomeratename LIKE 'HEADWATER_LAST%'"
LAST = "SELECT tablename FROM sys.systables WHERE tablename LIKE 'HEADWATER_LAST%'"


def test_changes_are_remembered_with_an_index_and_with_the_table_that_they_are_of(
    items: Any, derby: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, rows = JDBC.replace("MORE", "keys: id, sequence: v, delete_when: gone"), 'SELECT "id", "v" FROM items'

    def read_from(offset: int, sequence: str = "v") -> Any:
        changed = text.replace("as: i}", f"as: i, starting_offsets: {{0: {offset}}}}}").replace(
            "e: v,", f"e: {sequence},"
        )
        items.run(changed, environ={"URL": derby.url}, reset=["s"])
        return derby.rows(rows)

    items.produce("@in", [item(1, 5), item(2, 5, gone=True), item(2, 4), item(2, 3), item(2, 2)])
    items.run(text.replace("as: i}", "as: i, max_offsets_per_trigger: 2}"), environ={"URL": derby.url})
    [(last,)] = derby.rows(LAST)
    assert derby.rows(INDEXES) == [(f"{last}_KEYS",)]
    assert read_from(2) == [(1, 5)], "a stage that starts anew leaves the rows, and what is remembered of them"
    assert read_from(2, "[v, gone]") == [(1, 5), (2, 4)], "values of another sequence are not compared"
    derby.run("DROP TABLE items")
    real, dropped = jdbc._Database.execute, list[str]()

    def execute(self: Any, statement: str, *values: Any) -> int:
        if statement.startswith("DROP TABLE headwater_last"):
            dropped.append(statement)
            raise ValueError("the crash")
        return real(self, statement, *values)

    with monkeypatch.context() as patched:
        patched.setattr(jdbc._Database, "execute", execute)
        with pytest.raises(PipelineFailed, match="the crash"):
            read_from(3)
    assert len(dropped) == 1
    assert derby.rows("SELECT * FROM items") == [], "the new target is there"
    assert read_from(3) == [(2, 3)], "whoever removes a table removes its memory, and a crash behind it leaves none"
    assert derby.rows("SELECT writer FROM headwater_batches WHERE writer LIKE 'left %'") == []


def test_what_is_remembered_stays_where_the_target_only_seems_not_to_be_there(
    items: Any, derby: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = JDBC.replace("MORE", "keys: id, sequence: v, delete_when: gone")
    items.produce("@in", [item(1, 5, "a"), item(2, 5, gone=True)])
    items.run(text, environ={"URL": derby.url})
    [(last,)] = derby.rows(LAST)
    items.produce("@in", [item(2, 4, "b")])
    real = jdbc._Database.has
    for is_there_later in (False, True):  # no right to read it; made meanwhile
        looks: list[str] = []

        def has(self: Any, table: str, looks: list[str] = looks, is_there_later: bool = is_there_later) -> bool:
            if table == "items":
                looks.append(table)
            return real(self, table) and (table != "items" or (is_there_later and len(looks) > 1))

        with monkeypatch.context() as patched:
            patched.setattr(jdbc._Database, "has", has)
            with nullcontext() if is_there_later else pytest.raises(PipelineFailed, match="the table items"):
                items.run(text, environ={"URL": derby.url})
        assert len(looks) == 2
        assert len(derby.rows(f"SELECT * FROM {last}")) == 2
    assert derby.rows('SELECT "id", "v" FROM items') == [(1, 5)], "a change before the delete is passed over"


def test_a_batch_that_the_database_refuses_leaves_nothing_and_is_told_without_the_url(items: Any, derby: Any) -> None:
    text = JDBC.replace(", MORE", "")
    derby.run("CREATE TABLE items (id BIGINT, name VARCHAR(2), v BIGINT, gone BOOLEAN)")
    items.produce("@in", [item(1, 1, "a"), item(2, 1, "much too long")])
    with pytest.raises(PipelineFailed, match=r"stage s: the table items: .*truncation") as caught:
        items.run(text, environ={"URL": derby.url})
    assert derby.url not in str(caught.value)
    assert derby.rows("SELECT id FROM items") == []
    derby.run("ALTER TABLE items ALTER COLUMN name SET DATA TYPE VARCHAR(20)")
    items.run(text, environ={"URL": derby.url})
    assert derby.rows("SELECT id FROM items") == [(1,), (2,)]


FUNCTION = """\
from pathlib import Path


def keep(rows, batch):
    Path(__file__).with_name(f"batch-{batch}.json").write_text(str(sorted(row.id for row in rows.collect())))


def fail(rows, batch):
    if not Path(__file__).with_name("mended").exists():
        raise RuntimeError("not yet")
"""


def test_a_stage_with_every_kind_of_sink_leaves_each_once_when_one_fails_and_the_batch_runs_again(
    items: Any, derby: Any, caplog: pytest.LogCaptureFixture
) -> None:
    items.write("sink.py", FUNCTION)
    without_version = ("3", {"id": 3, "name": "n", "gone": False})
    items.produce("@in", [item(0, 1, "n"), item(1, 2, "n"), item(2, 3, "n"), without_version, item(9, 0, "n")])
    stage = (
        HEAD
        + """\
  - name: s
    from: {topic: "@in", as: i, max_offsets_per_trigger: MOST}
    expect:
      - {name: versioned, that: v IS NOT NULL AND 4 / v > 0, otherwise: warn}
      - {name: divisor, that: v IS NULL OR v <> 0, otherwise: drop}
    to:
"""
    )
    everything = """\
      - {delta: lake/added}
      - {delta: lake/merged, merge: {keys: id}}
      - {files: out, format: json}
      - {jdbc: "${env:URL}", table: items}
      - {python: {file: sink.py, function: fail}}
      - {topic: "@out", key: id}
      - {delta: lake/latest, merge: {keys: id, sequence: v}, when: V IS NOT NULL}
      - {topic: "@low", when: 4 / v >= 2, guarantee: at_least_once}
      - {topic: "@some", when: rand() < 0.5}
      - {topic: "@none", when: "CAST(NULL AS BOOLEAN)"}
"""
    chosen = """\
      - {delta: lake/odd, partition_by: [id % 3 AS third], when: v % 2 = 1}
      - {files: odd, format: json, when: v % 2 = 1}
      - {jdbc: "${env:URL}", table: odd, when: v % 2 = 1}
      - {python: {file: sink.py, function: keep}, when: v % 2 = 1}
      - {topic: "@odd", key: id, when: v % 2 = 1}
"""
    text = stage.replace("MOST", "100") + chosen + everything

    def of_files(folder: str) -> list[tuple[int]]:
        lines = [line for path in (items.folder / folder).glob("*.json") for line in path.read_text().splitlines()]
        return sorted((json.loads(line)["id"],) for line in lines)

    def of_topic(topic: str) -> list[tuple[int]]:
        return sorted((seen.json["id"],) for seen in items.read(topic))

    def received() -> list[list[tuple[Any, ...]]]:
        return [items.delta("lake/odd", "id"), of_files("odd"), derby.rows('SELECT "id" FROM odd'), of_topic("@odd")]

    with pytest.raises(PipelineFailed, match=r"sink.py: RuntimeError: not yet \(line 10\)"):
        items.run(text, environ={"URL": derby.url})
    assert items.read("@out") == []
    (items.folder / "mended").write_text("")
    caplog.clear()
    result = items.run(text, environ={"URL": derby.url})
    totals = result.totals["s"]
    assert (totals.written, totals.unmet, totals.dead_letters) == (4, {"versioned": 1, "divisor": 1}, 0)
    (warning,) = [each.getMessage() for each in caplog.records if "do not meet" in each.getMessage()]
    assert warning.startswith("stage s: 1 rows that are written do not meet the expectation versioned (v IS NOT NULL")
    assert warning.endswith("; the first is offset 3 of partition 0")
    everywhere, odd = [(0,), (1,), (2,), (3,)], [(0,), (2,)]
    assert items.delta("lake/added", "id") == everywhere
    assert items.delta("lake/merged", "id") == everywhere
    assert derby.rows('SELECT "id" FROM items') == everywhere
    assert of_files("out") == of_topic("@out") == everywhere
    # Sinks with `when`: a row without sequence is no dead letter where its sink does not receive it.
    assert received() == [odd] * 4
    assert items.delta("lake/latest", "id", "v") == [(0, 1), (1, 2), (2, 3)]
    assert (items.folder / "batch-0.json").read_text() == "[0, 2]"
    assert of_topic("@low") == [(0,), (1,)]
    assert set(of_topic("@some")) <= set(everywhere)
    assert of_topic("@none") == []
    # A batch without a row for them leaves them alone, and the next one goes on.
    items.produce("@in", [item(4, 4, "n"), item(5, 5, "n")])
    items.run(stage.replace("MOST", "1") + chosen, environ={"URL": derby.url})
    assert received() == [[*odd, (5,)]] * 4
    history = items.spark.sql(f"DESCRIBE HISTORY delta.`{items.folder}/lake/odd`")
    assert history.where("operation = 'WRITE'").count() == 2
    assert not (items.folder / "batch-1.json").exists()
    assert (items.folder / "batch-2.json").read_text() == "[5]"


def codec(address: str, topic: str) -> str:
    """The codec of a topic's first record batch."""
    where = (topic, 0)
    with ClusterClient(ClientConfig(parse_bootstrap_servers(address))) as cluster:
        start, end = (cluster.list_offsets({where: at})[where] for at in (EARLIEST, LATEST))
        fetched = next(iter(read_partition(cluster, *where, start, end, FetchConfig())))
    return CODEC_NAMES[fetched.data[ATTRIBUTES + 1] & COMPRESSION_MASK]


def test_records_have_the_headers_times_codecs_and_bytes_that_their_sink_says(items: Any) -> None:
    items.produce("@in", [item(n, 1, "a" * 1000) for n in range(1, 20)] + [item(20, 1, gone=True)])
    items.run(
        HEAD
        + f"""\
  - name: s
    from: {{topic: "@in", as: i}}
    to:
      - topic: "@out"
        key: id
        headers: {{name: "nullif(name, '')", version: v}}
        timestamp: TIMESTAMP '2026-01-01 00:00:00'
        tombstone_when: gone
      - {{topic: "@plain"}}
      - {{topic: "@once", compression: zstd}}
      - {{topic: "@at_least_once", compression: lz4, guarantee: at_least_once}}
      - {{topic: "@same", key: _key, value: _value}}
      - {{delta: "file://{items.folder}/lake/latest", merge: {{keys: id}}}}
"""
    )
    written = {seen.key: seen for seen in items.read("@out")}
    assert written[b"1"].json == {"id": 1, "v": 1, "name": "a" * 1000, "gone": False}
    assert written[b"1"].headers == {"name": b"a" * 1000, "version": b"1"}
    assert written[b"20"].value is None
    assert written[b"20"].headers == {"version": b"1"}
    assert {seen.timestamp_ms for seen in written.values()} == {1_767_225_600_000}

    found = {name: codec(items.servers, items.prefix + name) for name in ("plain", "once", "at_least_once")}
    assert found == {"plain": "none", "once": "zstd", "at_least_once": "lz4"}
    for name in found:
        assert sorted(seen.json["id"] for seen in items.read(f"@{name}")) == list(range(1, 21))

    same, given = (sorted((seen.key, seen.value) for seen in items.read(topic)) for topic in ("@same", "@in"))
    assert same == given
    assert items.delta("lake/latest", "id") == [(n,) for n in sorted(range(1, 21), key=str)]


TOTALS = """\
  - name: s
    from: {topic: "@in", as: i}
    sql: SELECT id, sum(v) AS total FROM i GROUP BY id HAVING sum(v) > 0
    mode: complete
    to: [{delta: lake/totals}, {delta: lake/large, when: total > 4}, {topic: "@large", when: total > 4}]
"""


def test_a_complete_result_without_rows_of_a_sink_replaces_its_table(items: Any) -> None:
    items.produce("@in", [item(1, 5)])
    items.run(HEAD + TOTALS)
    assert items.delta("lake/totals", "id", "total") == items.delta("lake/large", "id", "total") == [(1, 5)]
    items.produce("@in", [item(1, -2)])
    items.run(HEAD + TOTALS)
    assert items.delta("lake/totals", "id", "total") == [(1, 3)]
    assert items.delta("lake/large", "id", "total") == []
    items.produce("@in", [item(1, -3)])
    items.run(HEAD + TOTALS)
    assert items.delta("lake/totals", "id", "total") == []
    assert items.values("@large") == [{"id": 1, "total": 5}]


TWO_TABLES = (
    HEAD
    + """\
  - name: s
    from: {topic: "@in", as: i}
    sql: SELECT id, v FROM i
    to: [{jdbc: "${env:URL}", table: items}, {jdbc: "${env:URL}", table: others}]
"""
)


def test_each_of_a_stages_tables_in_a_database_counts_its_own_batches(items: Any, derby: Any) -> None:
    items.produce("@in", [item(1, 1), item(2, 1)])
    items.run(TWO_TABLES, environ={"URL": derby.url})
    query = 'SELECT "id" FROM {}'
    assert derby.rows(query.format("items")) == derby.rows(query.format("others")) == [(1,), (2,)]
    tables = {name for (name,) in derby.rows("SELECT tablename FROM sys.systables WHERE tabletype = 'T'")}
    assert tables == {"ITEMS", "OTHERS", "HEADWATER_BATCHES"}
    # As earlier versions left it: one number for the stage, which must not be written again.
    derby.run(
        "UPDATE headwater_batches SET writer = SUBSTR(writer, 1, LOCATE(' ', writer) - 1) WHERE writer LIKE '% items'"
    )
    derby.run("DELETE FROM headwater_batches WHERE writer LIKE '% others'")
    items.repeat_last_batch("p", "s")
    items.run(TWO_TABLES, environ={"URL": derby.url})
    assert derby.rows(query.format("items")) == derby.rows(query.format("others")) == [(1,), (2,)]
    items.produce("@in", [item(3, 1)])
    items.run(TWO_TABLES, environ={"URL": derby.url})
    assert derby.rows(query.format("items")) == derby.rows(query.format("others")) == [(1,), (2,), (3,)]
