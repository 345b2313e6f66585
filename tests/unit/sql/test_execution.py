"""What a statement may change, how its failure is told, and what is never run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from headwater.cli.sql.execution import failure_of, may_commit
from headwater.cli.sql.follow import Follower
from headwater.pipelines.sql.statement import names_once
from headwater.pipelines.sql.statement_errors import StatementError
from headwater.pipelines.sql_text.scanner import Statement, statements


def statement(text: str) -> Statement:
    (found,) = statements(text)
    return found


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("EXECUTE IMMEDIATE 'INSERT INTO t VALUES (1)'", "EXECUTE"),
        ("CONVERT TO DELTA parquet.`/x`", "CONVERT"),
        ("REORG TABLE t APPLY (PURGE)", "REORG"),
        ("MSCK REPAIR TABLE t", "MSCK"),
        ("FROM a INSERT INTO t SELECT *", "INSERT"),
        ("WITH a AS (SELECT 1 AS x) DELETE FROM t WHERE x IN (TABLE a)", "DELETE"),
        ("SELECT `delete`, update FROM t", ""),
        ("(SELECT 1)", ""),
        ("EXPLAIN INSERT INTO t SELECT 1", ""),
        ("DESC t", ""),
    ],
)
def test_only_queries_and_descriptions_certainly_change_nothing(text: str, word: str) -> None:
    assert may_commit(text) == word


class JavaError(Py4JJavaError):  # type: ignore[misc]
    """An error of the JVM's, with its text."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)
        self._text = text

    def __str__(self) -> str:
        return self._text


def test_a_failure_of_sparks_is_a_line_with_which_a_script_can_go_on() -> None:
    relations: Any = SimpleNamespace(reason=lambda _error: "")
    text = "An error occurred while calling o1.sql.\n: org.apache.spark.SparkException: Job aborted.\n\tat a.b\n" * 99
    told = failure_of(JavaError(text), relations, statement("CREATE TABLE t AS SELECT 1"))
    assert isinstance(told, StatementError)
    assert (told.message, told.is_users) == ("org.apache.spark.SparkException: Job aborted.", False)
    late = failure_of(ValueError("year 10000 is out of range"), relations, statement("SELECT 1"))
    assert isinstance(late, StatementError)
    assert "year 10000 is out of range" in late.message
    listing = OSError("no broker answers")
    assert failure_of(listing, relations, statement("SELECT 1")) is listing


def test_a_command_is_refused_before_it_runs_as_a_stream() -> None:
    spark: Any = object()  # any use of it would fail
    run: Any = SimpleNamespace(check=lambda: None)
    for text in ("DELETE FROM lake.t", "CREATE TABLE t AS SELECT * FROM a", "EXECUTE IMMEDIATE 'DELETE FROM t'"):
        with pytest.raises(StatementError, match="only a query can be followed"):
            Follower(spark, spark, {})._work(run, statement(text))


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t SELECT * FROM a WHERE x < 5 UNION ALL SELECT * FROM (a)",
        "INSERT INTO t SELECT * FROM a JOIN IDENTIFIER(:name)",
        "EXECUTE IMMEDIATE 'INSERT INTO t SELECT * FROM a UNION ALL TABLE a' USING b",
        "INSERT INTO t WITH b AS (TABLE a) SELECT * FROM b JOIN b AS c",
    ],
)
def test_a_command_may_scan_again_what_its_text_names_once(text: str) -> None:
    assert not names_once(text)
