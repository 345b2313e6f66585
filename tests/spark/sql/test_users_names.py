"""What is the user's stays so: tables of the catalog, temporary views, and names whose statement fails."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.cli.sql.completion import SqlCompleter
from headwater.pipelines.sql.relations import Known
from headwater.pipelines.sql.statement_errors import StatementError
from headwater.pipelines.sql.topic_names import TopicNames

pytestmark = pytest.mark.slow


@pytest.fixture
def flights(lab: Any) -> Any:
    """Ten records in one partition."""
    lab.create("@flights")
    lab.produce("@flights", [(f"k{n}".encode(), b"v") for n in range(10)])
    return lab


def test_a_table_of_the_catalog_is_never_replaced_by_a_delta_table_of_that_name(lab: Any, tmp_path: Path) -> None:
    lab.spark.sql("CREATE SCHEMA IF NOT EXISTS lake")
    lab.rows("CREATE TABLE lake.@orders USING delta AS SELECT 1 AS kept")
    given = str(tmp_path / "orders")
    lab.spark.sql("SELECT 2 AS other").write.format("delta").save(given)
    lab.with_known(Known(tables={lab.name("@orders"): given}))
    with pytest.raises(StatementError, match=r"the catalog has a table lake.* which is another than"):
        lab.rows("SELECT * FROM lake.@orders")
    assert lab.rows("SELECT * FROM @orders") == [(2,)]
    assert [tuple(row) for row in lab.spark.table(lab.name("lake.@orders")).collect()] == [(1,)]
    lab.rows("DROP TABLE lake.@orders")
    assert lab.rows("SELECT * FROM lake.@orders") == [(2,)]
    # The name goes with DROP TABLE; the files stay, and the next statement that names them has them again.
    lab.rows("DROP TABLE lake.@orders")
    assert lab.rows("SELECT * FROM lake.@orders") == [(2,)]


def test_a_temporary_view_of_the_programs_is_neither_replaced_nor_dropped(flights: Any) -> None:
    lab, where = flights, {"bootstrap_servers": flights.servers}
    name = lab.name("@flights")
    assert headwater.sql(lab.spark, f"SELECT count(*) FROM {name}", **where).collect() == [(10,)]
    assert not lab.spark.catalog.tableExists(name), "the names of a statement end with it"
    lab.spark.range(3).createOrReplaceTempView(name)
    try:
        for _ in range(2):
            assert headwater.sql(lab.spark, f"SELECT count(*) FROM {name}", **where).collect() == [(3,)]
        assert lab.one("SELECT count(*) FROM @flights") == 3
        assert lab.one("SELECT 1") == 1
        assert lab.spark.table(name).count() == 3
    finally:
        lab.spark.catalog.dropTempView(name)


def test_a_view_that_is_not_made_hides_no_topic(flights: Any) -> None:
    lab = flights
    with pytest.raises(StatementError, match="no column 'nope'"):
        lab.rows("CREATE TEMP VIEW @flights AS SELECT nope")
    assert lab.one("SELECT count(*) FROM @flights") == 10
    lab.rows("CREATE TEMP VIEW @flights AS SELECT 5 AS five")
    with pytest.raises(StatementError):
        lab.rows("DROP VIEW @none")
    assert lab.one("SELECT * FROM @flights") == 5
    lab.rows("CREATE GLOBAL TEMP VIEW @flights AS SELECT 6 AS six")
    assert lab.one("SELECT * FROM log.@flights") == 6
    lab.rows("DROP VIEW @flights")
    assert lab.one("SELECT count(*) FROM @flights") == 10
    lab.rows("DROP VIEW log.@flights")
    assert lab.one("SELECT count(*) FROM log.@flights") == 10


def test_a_command_reads_a_topic_whole_that_its_words_do_not_show(flights: Any) -> None:
    lab = flights
    both = "SELECT * FROM (@flights) WHERE offset < 5 UNION ALL SELECT * FROM IDENTIFIER(:t)"
    lab.rows(f"CREATE TABLE @copy USING delta AS {both}", {"t": lab.name("@flights")})
    assert lab.one("SELECT count(*) FROM @copy") == 15
    lab.rows("CREATE TABLE @again USING delta AS SELECT * FROM (@flights) AS a WHERE offset < 5 UNION ALL "
             "SELECT * FROM (@flights) AS b")  # fmt: skip
    assert lab.one("SELECT count(*) FROM @again") == 15


def test_a_statement_that_waits_for_a_broker_holds_up_no_other(flights: Any) -> None:
    lab = flights
    asked, answers = threading.Event(), threading.Event()
    late: list[BaseException] = []

    def list_names() -> list[str]:
        asked.set()
        answers.wait(120)
        return [lab.name("@flights")]

    lab.relations.topics = TopicNames(list_names)

    def wait() -> None:
        try:
            lab.rows("SELECT count(*) FROM @flights")
        except BaseException as error:  # noqa: BLE001 - looked at below
            late.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert asked.wait(120)
    assert lab.one("SELECT 1") == 1  # hangs while the first statement holds a lock
    answers.set()
    waiting.join(120)
    assert [str(each) for each in late] == ["the statement was cancelled, and another has begun"]


def test_a_completion_makes_no_view_and_keeps_the_statements(flights: Any) -> None:
    lab = flights
    before = lab.relations.begin("SELECT 1")
    found = SqlCompleter(lab.relations)._columns(lab.name("SELECT * FROM @flights"))
    assert {"offset", "value"} <= found
    assert not lab.spark.catalog.tableExists(lab.name("@flights"))
    assert lab.relations._current is before
