"""What names stand for in statements: topics, the log, Delta tables; and how wrong names are reported."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from headwater.pipelines.formats.registry_client import RegistryError
from headwater.pipelines.sql.registry_columns import RegistryColumns, own_registry
from headwater.pipelines.sql.relations import Known, PresentFrames
from headwater.pipelines.sql.statement import failed
from headwater.pipelines.sql.statement_errors import StatementError
from headwater.pipelines.validation.pipeline_file import load

pytestmark = pytest.mark.slow


def failure(lab: Any, text: str, values: Any = None) -> str:
    with pytest.raises(StatementError) as caught:
        lab.rows(text, values)
    return caught.value.line()


@pytest.fixture
def flights(lab: Any) -> Any:
    """Ten records in each of three partitions."""
    lab.create("@flights", 3)
    for partition in range(3):
        lab.produce("@flights", [(f"k{n}".encode(), f'{{"id": {n}}}'.encode()) for n in range(10)], partition)
    return lab


def test_a_name_is_the_topic_and_its_log_and_the_lake_have_names_of_their_own(flights: Any, tmp_path: Path) -> None:
    lab = flights
    path = str(tmp_path / "it's a table")
    lab.spark.sql("SELECT 7 AS seven").write.format("delta").save(path)
    lab.with_known(Known(tables={lab.name("@flights"): path, "only": path, "later": str(tmp_path / "later")}))
    assert lab.one("SELECT count(*) FROM @flights") == 30
    assert lab.one("SELECT count(DISTINCT log.@flights.key) FROM log.@flights WHERE log.@flights.partition = 1") == 10
    assert lab.frame("TABLE log.@flights").columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert lab.rows("SELECT * FROM lake.@flights") == lab.rows("SELECT * FROM only") == [(7,)]
    # A table of the catalog, and no view: statements change it, and read its versions.
    lab.rows("INSERT INTO lake.only VALUES (8)")
    lab.rows("DELETE FROM lake.only WHERE seven = 7")
    assert lab.rows("SELECT * FROM lake.only") == [(8,)]
    assert lab.rows("SELECT * FROM lake.only VERSION AS OF 0") == [(7,)]
    assert lab.frame("DESCRIBE HISTORY lake.only").count() == 3
    assert "'lake.later'; there is no Delta table at" in failure(lab, "SELECT * FROM lake.later")
    lab.spark.sql("SELECT 1 AS one").write.format("delta").save(str(tmp_path / "later"))
    assert lab.rows("SELECT * FROM lake.later, later AS l") == [(1, 1)]


def test_ctes_aliases_strings_and_comments_are_what_spark_takes_them_for(flights: Any) -> None:
    lab = flights
    assert lab.rows("WITH @flights AS (SELECT 1 AS x) SELECT x, 'FROM @flights' FROM @flights -- FROM @none") == [
        (1, lab.name("FROM @flights"))
    ]
    assert lab.one("SELECT count(*) FROM (@flights) AS `a b` WHERE `a b`.partition = 2") == 10
    assert lab.one("SELECT count(*) FROM IDENTIFIER(:name)", {"name": lab.name("@flights")}) == 30
    assert lab.one("SELECT (SELECT max(offset) FROM @flights) + 1") == 10
    assert lab.one("SELECT count(*) FROM @FLIGHTS") == 30
    lab.create("@with.dots-and-dashes")
    assert lab.one("SELECT count(*) FROM `@with.dots-and-dashes`") == 0
    assert "line 1, column 15: " in (told := failure(lab, "SELECT * FROM @with.dots"))
    assert "there is no topic, table or view" in told
    lab.create("@a.b")
    assert lab.name("a name with dots needs backquotes: `@a.b`") in failure(lab, "SELECT * FROM @a.b")
    plan = lab.one("EXPLAIN SELECT * FROM @flights WHERE partition = 0")
    assert "Physical Plan" in plan
    assert "there is no topic" in failure(lab, "EXPLAIN SELECT * FROM @none")


def test_each_scan_of_a_topic_reads_its_own_ranges(flights: Any) -> None:
    lab = flights
    assert lab.rows(
        "SELECT (SELECT count(*) FROM @flights WHERE partition = 0), (SELECT count(*) FROM @flights), "
        "(SELECT count(*) FROM @flights WHERE partition = 1 AND offset > 3)"
    ) == [(10, 30, 6)]
    assert lab.rows("SELECT count(*) FROM @flights WHERE partition = 0 UNION ALL SELECT count(*) FROM @flights") == [
        (10,),
        (30,),
    ]
    both = "FROM @flights a JOIN @flights b ON a.offset = b.offset WHERE a.partition = 0 AND b.partition = 1"
    assert lab.one(f"SELECT count(*) {both}") == 10
    cte = "WITH c AS (TABLE @flights) SELECT (SELECT count(*) FROM c WHERE partition = 2), (SELECT count(*) FROM c)"
    assert lab.rows(cte) == [(10, 30)]
    # One after the other, over a view of the user's, and in a command.
    lab.rows("CREATE TEMP VIEW @two AS SELECT * FROM @flights WHERE partition = 2")
    assert lab.rows("SELECT (SELECT count(*) FROM @two), (SELECT count(*) FROM @flights)") == [(10, 30)]
    lab.produce("@flights", [(b"k", b"v")], 2)
    assert lab.one("SELECT count(*) FROM @two") == 11
    lab.rows("CREATE TABLE @copy USING delta AS SELECT * FROM @two")
    lab.rows("INSERT INTO @copy SELECT a.* FROM @flights a WHERE a.partition = 0 UNION ALL SELECT * FROM @flights")
    assert lab.one("SELECT count(*) FROM @copy") == 11 + 10 + 31


def test_a_users_view_is_never_replaced_by_a_topic(flights: Any) -> None:
    lab = flights
    assert lab.one("SELECT count(*) FROM @flights") == 30
    lab.rows("CREATE TEMP VIEW @flights AS SELECT 5 AS five")
    assert lab.one("SELECT * FROM @flights") == 5
    assert lab.one("SELECT count(*) FROM log.@flights") == 30
    lab.rows("DROP VIEW @flights")
    assert lab.one("SELECT count(*) FROM @flights") == 30
    lab.rows("CREATE TABLE default.@flights USING delta AS SELECT 6 AS six")
    assert lab.one("SELECT count(*) FROM @flights") == 30
    assert lab.one("SELECT six FROM default.@flights") == 6


def test_topics_that_come_and_go_do_so_in_the_session(lab: Any) -> None:
    lab.create("@delays")
    assert "did you mean" in (told := failure(lab, "SELECT *\nFROM @delay"))
    assert told.startswith("line 2, column 6: ")
    lab.create("@delay")
    assert lab.one("SELECT count(*) FROM @delay") == 0
    lab.produce("@delay", [(None, b"1")])
    assert lab.one("SELECT count(*) FROM @delay") == 1
    lab.admin.delete_topics([lab.name("@delay")])
    while lab.name("@delay") in lab.relations.topics.all(anew=True):
        time.sleep(0.1)
    assert "there is no topic" in failure(lab, "SELECT count(*) FROM @delay")


def test_topics_that_differ_in_case_only_are_told_apart_or_refused(lab: Any) -> None:
    for name, records in (("@case", 1), ("@Case", 2)):
        lab.create(name)
        lab.produce(name, [(None, b"v")] * records)
    assert lab.one("SELECT count(*) FROM @case") == 1
    assert lab.one("SELECT count(*) FROM @Case") == 2
    assert "differ in case only" in failure(lab, "SELECT count(*) FROM @case JOIN @Case")
    assert "write its exact name" in failure(lab, "SELECT count(*) FROM @CASE")


class Counted(PresentFrames):
    """Frames of topics that need not exist, counted."""

    made: list[str]

    def of_statement(self) -> Counted:
        return self

    def rows(self, topic: str, known: Any, *, pushdown: bool) -> Any:
        del known, pushdown
        self.made.append(topic)
        return self._spark.range(1)


def test_5000_topics_cost_nothing_until_they_are_named(lab: Any) -> None:
    frames = Counted(lab.spark, lab.servers)
    frames.made = []
    relations = lab.with_known(Known(), frames)
    asked: list[int] = []

    def list_names() -> list[str]:
        asked.append(1)
        return [f"t{n}" for n in range(5_000)]

    relations.topics._list = list_names
    assert lab.one("SELECT 1") == 1
    assert (asked, frames.made) == ([], [])
    assert lab.one("SELECT count(*) FROM t4999 JOIN t17") == 1
    assert (len(asked), frames.made) == (1, ["t4999", "t17"])


PIPELINE = """\
pipeline: p
topics:
  "@orders": {value: json, schema: order.json}
stages:
  - {name: s, from: {topic: "@orders"}, sql: 'SELECT * FROM `@orders`', to: {delta: lake/clean-orders}}
"""
SCHEMA = '{"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}'


def test_records_that_cannot_be_decoded_are_rows(lab: Any, tmp_path: Path) -> None:
    from headwater.pipelines.analysis.analysis import analyse
    from headwater.pipelines.sql.lake_tables import delta_tables

    lab.create("@orders")
    records = [(b"k", b'{"id": 1, "name": "a"}'), (b"\x00\xff", b"no JSON"), (None, b"\x80"), (b"k", None)]
    lab.produce("@orders", records)
    raw = lab.rows("SELECT key, value FROM @orders ORDER BY offset")
    assert raw == [("k", '{"id": 1, "name": "a"}'), ("X'00FF'", "no JSON"), (None, "X'80'"), ("k", None)]
    (tmp_path / "p.yaml").write_text(lab.name(PIPELINE))
    (tmp_path / "order.json").write_text(SCHEMA)
    loaded = load(str(tmp_path / "p.yaml"), {}, frozenset(lab.admin.topic_names()), environ={})
    assert delta_tables(loaded) == {"clean_orders": str(tmp_path / "lake" / "clean-orders")}
    lab.with_known(Known(analyse(lab.spark, loaded, lab.servers).columns, loaded))
    assert lab.frame("TABLE @orders").columns == [
        "_partition", "_offset", "_timestamp", "_key", "id", "name", "_error", "_value",
    ]  # fmt: skip
    found = lab.rows("SELECT _offset, _key, id, name, _error IS NULL, _value FROM @orders ORDER BY _offset")
    assert found == [
        (0, "k", 1, "a", True, None),
        (1, "X'00FF'", None, None, False, "no JSON"),
        (2, None, None, None, False, "X'80'"),
        (3, "k", None, None, False, None),
    ]
    assert "no column 'nam'; did you mean 'name'?" in failure(lab, "SELECT nam FROM @orders")


def test_columns_come_from_the_registry_and_follow_its_latest_version(lab: Any, registry: Any, schemas: Any) -> None:
    from confluent_kafka.schema_registry import Schema

    subject = lab.name("@events-value")
    schemas.set_compatibility(subject, "NONE")
    one = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
    number = schemas.register_schema(subject, Schema(one, "JSON"))
    lab.create("@events")
    lab.produce("@events", [(None, b"\0" + number.to_bytes(4, "big") + b'{"id": 7}'), (None, b"not framed")])
    now = [0.0]
    lab.with_known(Known(registered=RegistryColumns(registry.url, lambda: now[0]).of))
    assert lab.rows("SELECT id, _error IS NULL FROM @events ORDER BY _offset") == [(7, True), (None, False)]
    two = '{"type": "object", "properties": {"id": {"type": "integer"}, "more": {"type": "string"}}}'
    schemas.register_schema(subject, Schema(two, "JSON"))
    now[0] += 60
    assert "more" in lab.frame("TABLE @events").columns
    port = int(registry.url.rstrip("/").rpartition(":")[2])
    cluster = lab.admin.cluster().cluster_id
    assert own_registry(lab.servers, port, lambda: cluster) == f"http://127.0.0.1:{port}"
    assert own_registry(lab.servers, port, lambda: "another cluster") is None
    registry.stop()
    assert own_registry(lab.servers, port, lambda: cluster) is None
    now[0] += 60
    with pytest.raises(RegistryError, match="no schema registry answers"):
        lab.frame("TABLE @events")
    registry.start()
    lab.create("@plain")
    assert lab.frame("TABLE @plain").columns[:2] == ["key", "value"]


def test_parameters_are_values_and_never_text(flights: Any) -> None:
    lab = flights
    assert lab.one("SELECT count(*) FROM @flights WHERE partition = :p AND key > :k", {"p": 1, "k": "k4"}) == 5
    text = "'; DROP TABLE x; -- :p"
    assert lab.one("SELECT :text", {"text": text, "unused": 1}) == text
    assert lab.frame("SELECT * FROM @flights LIMIT :most", {"most": 3}).count() == 3
    assert "UNBOUND_SQL_PARAMETER" in failure(lab, "SELECT :none", {"some": 1})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("SELECT 1,\n  FORM x y", "line 2, column"),
        ("SELECT\n\n  nofun(1)", "line 3, column 3: "),
        ("SELECT 'é', idd FROM range(3)", "line 1, column 13: there is no column 'idd'; did you mean 'id'?"),
    ],
)
def test_an_error_names_line_and_column(lab: Any, text: str, line: str) -> None:
    assert failure(lab, text).startswith(line)


def test_a_statement_that_fails_while_it_runs_is_no_mistake_of_its_text(lab: Any) -> None:
    with pytest.raises(PySparkException) as caught:
        lab.rows("SELECT 1 / 0")
    told = failed(caught.value, lab.relations, lab.statement("SELECT 1 / 0"))
    assert told.line().startswith("line 1, column 8: [DIVIDE_BY_ZERO]")
    assert not told.is_users
