"""Rows of tests: their types, their files, what is compared, and what a pipeline's file says wrong about them."""

from __future__ import annotations

import datetime as dt
import decimal
import doctest
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headwater.pipelines.errors import PipelineError
from headwater.pipelines.rows import column_types, comparison, given_rows, row_files, typed_values
from headwater.pipelines.rows.column_types import from_ddl, inferred, shown
from headwater.pipelines.rows.comparison import compare, row_text
from headwater.pipelines.rows.given_rows import Feature, in_step, micro_batches
from headwater.pipelines.rows.row_files import RowsOfFile
from headwater.pipelines.rows.typed_values import from_text, typed
from headwater.pipelines.testing.results import Judged, RunOutcome, summary
from headwater.pipelines.validation.pipeline_file import load

UTC = dt.UTC


@pytest.mark.parametrize("module", [column_types, comparison, typed_values, given_rows])
def test_the_examples_in_the_documentation_hold(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("ddl", "value", "found"),
    [
        ("BIGINT", 7, 7),
        ("DOUBLE", 7, 7.0),
        ("DOUBLE", "NaN", math.nan),
        ("STRING", "7", "7"),
        ("BOOLEAN", True, True),
        ("DECIMAL(6, 2)", 1.5, decimal.Decimal("1.50")),
        ("BINARY", "a", b"a"),
        ("BINARY", b"\xff", b"\xff"),
        ("DATE", "2026-01-02", dt.date(2026, 1, 2)),
        ("TIMESTAMP", "2026-01-02", dt.datetime(2026, 1, 2, tzinfo=UTC)),
        ("TIMESTAMP", dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, tzinfo=UTC)),
        ("TIMESTAMP", "2026-01-02T03:00:00+03:00", dt.datetime(2026, 1, 2, tzinfo=UTC)),
        ("TIMESTAMP_NTZ", "2026-01-02T03:00:00", dt.datetime.fromisoformat("2026-01-02T03:00:00")),
        ("ARRAY<INT>", [1, None], [1, None]),
        ("MAP<INT, STRING>", {"1": "a"}, {1: "a"}),
        ("STRUCT<a: INT, b: STRING>", {"a": 1}, {"a": 1, "b": None}),
        ("BIGINT", None, None),
    ],
)
def test_values_become_those_of_the_type(ddl: str, value: Any, found: Any) -> None:
    columns = from_ddl(f"c {ddl}")
    assert columns is not None
    assert comparison.equal(typed(columns["c"], value), found)


@pytest.mark.parametrize(
    ("ddl", "value", "said"),
    [
        ("BIGINT", "7", "'7' is no BIGINT"),
        ("INT", 2**31, "too large for INT"),
        ("BIGINT", True, "True is no BIGINT"),
        ("DOUBLE", "1.5", "'1.5' is no DOUBLE"),
        ("STRING", 7, "7 is not text; quote it"),
        ("STRING", dt.date(2026, 1, 2), "2026-01-02 is not text; quote it"),
        ("BOOLEAN", "yes", "'yes' is no BOOLEAN"),
        ("TIMESTAMP", "noon", "'noon' is no TIMESTAMP"),
        ("DATE", dt.datetime.fromisoformat("2026-01-02T03:00:00"), "is no DATE"),
        ("DECIMAL(4, 1)", 1.25, "1.25 does not fit DECIMAL(4,1)"),
        ("ARRAY<STRUCT<a: INT>>", [{"a": 1}, {"a": "x"}], "[1].a: 'x' is no INT"),
        ("STRUCT<amount: INT>", {"amonut": 1}, ".amonut: there is no such field; did you mean 'amount'?"),
        ("ARRAY<INT>", {"a": 1}, "a mapping is no ARRAY<INT>"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(ddl: str, value: Any, said: str) -> None:
    columns = from_ddl(f"c {ddl}")
    assert columns is not None
    with pytest.raises(ValueError, match=re.escape(said)):
        typed(columns["c"], value)


def test_types_are_written_as_sql_has_them() -> None:
    text = "a BIGINT, b ARRAY<STRUCT<`x y`: INT>>, c MAP<STRING, DOUBLE>, d DECIMAL(10,2)"
    found = from_ddl(text)
    assert found is not None
    assert [shown(kind) for kind in found.values()] == [
        "BIGINT", "ARRAY<STRUCT<x y: INT>>", "MAP<STRING, DOUBLE>", "DECIMAL(10,2)"
    ]  # fmt: skip
    assert from_ddl("a INTERVAL YEAR, b INT") is None
    assert from_ddl("no list of columns (") is None


def test_columns_that_nothing_tells_are_those_of_the_rows() -> None:
    rows: list[dict[str, Any]] = [
        {"n": 1, "s": {"a": 1}},
        {"n": 2.5, "s": {"b": "x"}, "t": dt.datetime(2026, 1, 1, tzinfo=UTC)},
        {"mixed": 1},
        {"mixed": "a"},
    ]
    found = inferred(rows)
    assert {name: shown(kind) for name, kind in found.items()} == {
        "n": "DOUBLE", "s": "STRUCT<a: BIGINT, b: STRING>", "t": "TIMESTAMP", "mixed": "STRING"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("a.json", '[{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}]),
        ("a.jsonl", '{"a": 1}\n\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ("a.csv", 'a,b\n1,"x, y"\n,z\n', [{"a": "1", "b": "x, y"}, {"a": "", "b": "z"}]),
    ],
)
def test_rows_come_from_files(tmp_path: Path, name: str, text: str, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = row_files.read(str(path))
    assert list(found.rows) == rows
    assert found.are_texts == name.endswith(".csv")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "line 1: not JSON"),
        ("a.json", "[1]", "row 1 is no JSON object"),
        ("a.csv", "", "the file is empty"),
        ("a.csv", "a,a\n1,2\n", "names a column twice"),
        ("a.csv", "a,b\n1\n", "line 2 has 1 cells"),
        ("a.json", '{"a": 1}\n' * 10_001, "at most 10,000 are compared"),
    ],
)
def test_a_file_that_holds_no_rows_says_why(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        row_files.read(str(path))


def test_cells_of_csv_are_read_as_their_columns_types_say() -> None:
    columns = from_ddl("n BIGINT, d DOUBLE, s STRING, b BOOLEAN, t TIMESTAMP, a ARRAY<INT>")
    assert columns is not None
    row = {"n": "1", "d": "2.5", "s": "7", "b": "TRUE", "t": "2026-01-01", "a": "[1, 2]"}
    found = given_rows.typed_rows(RowsOfFile((row, dict.fromkeys(row, "")), are_texts=True), columns)
    assert found[0] == {
        "n": 1, "d": 2.5, "s": "7", "b": True, "t": dt.datetime(2026, 1, 1, tzinfo=UTC), "a": [1, 2]
    }  # fmt: skip
    assert found[1] == {"n": None, "d": None, "s": "", "b": None, "t": None, "a": None}
    assert from_text("long", "seven") == "seven"  # and is refused as text is


COLUMNS = {"id": "long", "at": "timestamp"}
TOPIC = Feature("orders", has_watermark=True)


def fed(*rows: dict[str, Any], size: int | None = None) -> list[given_rows.Fed]:
    return micro_batches(RowsOfFile(rows, are_texts=False), COLUMNS, TOPIC, size)


def test_rows_are_cut_into_micro_batches_and_a_watermark_ends_one() -> None:
    rows = [{"id": 1}, {"id": 2}, {"id": 3}]
    assert [one.count for one in fed(*rows)] == [3]
    assert [one.count for one in fed(*rows, size=2)] == [2, 1]
    moved = fed({"id": 1}, {"_watermark": "2026-01-01"}, {"id": 2})
    moment = dt.datetime(2026, 1, 1, tzinfo=UTC)
    assert [(one.count, one.watermark) for one in moved] == [(1, moment), (0, None), (1, None)]
    assert [one.count for one in fed({"id": 1}, {"_watermark": "2026-01-01"})] == [1]
    assert [one.count for one in fed()] == [0]
    assert [len(batches) for batches in in_step([fed(*rows, size=1), fed({"id": 9})])] == [3, 3]


def test_a_row_knows_its_record_and_a_record_comes_as_it_is() -> None:
    (batch,) = fed(
        {"id": 1}, {"_value": b"\xff", "_key": "k", "_headers": {"h": "x"}}, {"_value": {"id": 2}}, {"_value": None}
    )
    (row,) = batch.rows
    assert (row["_topic"], row["_partition"], row["_offset"], row["_value"]) == ("orders", 0, 0, b'{"id": 1}')
    assert row["_timestamp"] == given_rows.FIRST_TIMESTAMP
    assert [record["value"] for record in batch.records] == [b"\xff", b'{"id": 2}', None]
    assert batch.records[0]["key"] == b"k"
    assert batch.records[0]["headers"] == [{"key": "h", "value": b"x"}]
    assert [record["offset"] for record in batch.records] == [1, 2, 3]


def test_missing_surplus_and_nearly_right_rows_are_told_apart() -> None:
    expected = [{"a": 1, "b": 2}, {"a": 9, "b": 9}]
    actual = [{"a": 1, "b": 3, "c": 0}, {"a": 5, "b": 6, "c": 0}]
    near, missing, surplus = compare(expected, actual)
    assert near.lines() == ["missing     {a: 1, b: 2}", "  nearest   {a: 1, b: 3}: b is 3, not 2"]
    assert missing.lines() == ["missing     {a: 9, b: 9}"]
    assert surplus.lines() == ["unexpected  {a: 5, b: 6, c: 0}"]
    assert near.as_dict() == {
        "kind": "missing", "row": 1, "expected": expected[0], "actual": actual[0], "columns": ["b"]
    }  # fmt: skip


def test_a_row_that_names_little_gives_way_to_one_that_names_more() -> None:
    assert compare([{"a": 1}, {"a": 1, "b": 2}], [{"a": 1, "b": 2}, {"a": 1, "b": 4}]) == []
    assert compare([{"a": 1}, {"a": 1}], [{"a": 1, "b": 1}])[0].kind == "missing"


def test_the_order_counts_only_where_it_is_asked_for() -> None:
    expected, actual = [{"a": 1}, {"a": 2}, {"a": 3}], [{"a": 2}, {"a": 1}, {"a": 3}]
    assert compare(expected, actual) == []
    assert [(d.kind, d.row) for d in compare(expected, actual, in_order=True)] == [("order", 1), ("order", 2)]


def test_null_is_not_a_value_and_nan_is_itself() -> None:
    assert compare([{"a": None}], [{"a": 0}])
    assert compare([{"a": None}], [{"a": None}]) == []
    assert compare([{"a": math.nan}], [{"a": math.nan}]) == []
    assert row_text({"a": None, "b": "x: y", "c": dt.datetime(2026, 1, 1, tzinfo=UTC)}) == (
        '{a: null, b: "x: y", c: 2026-01-01T00:00:00Z}'
    )


def test_a_failed_test_is_told_with_its_place_and_a_passed_one_in_a_line() -> None:
    wrong = RunOutcome("stream", tuple(compare([{"a": 1}], [])), (), ("1 rows do not meet paid, and 0 are expected",))
    failed = Judged("totals", "sum", "p.yaml", 7, 5, (RunOutcome("batch"), wrong))
    assert failed.lines() == [
        "FAIL  totals  (p.yaml:7:5, stage sum)",
        "      stream:",
        "        1 rows do not meet paid, and 0 are expected",
        "        missing     {a: 1}",
    ]
    passed = Judged("totals", "sum", "p.yaml", 7, 5, (RunOutcome("batch"), RunOutcome("stream")))
    assert passed.lines() == ["ok    totals  (sum: batch, stream)"]
    assert summary([passed, failed]) == "2 tests, 1 failed"
    assert [run["passed"] for run in failed.as_dict()["runs"]] == [True, False]


PIPELINE = """\
pipeline: p
topics:
  orders: {value: json, schema: order.json}
tables:
  shops: {format: csv, path: shops.csv, schema: "shop STRING, city STRING"}
  prices: {topic: prices}
stages:
  - name: clean
    from: {topic: orders, watermark: {column: at, delay: 1 hour}}
    expect: [{name: paid, that: amount > 0, otherwise: fail}, {name: known, that: shop IS NOT NULL}]
    sql: SELECT * FROM orders JOIN shops USING (shop)
    to: {topic: clean}
  - name: priced
    from: {topic: clean}
    sql: SELECT * FROM clean JOIN prices USING (shop)
    to: {topic: prices}
tests:
  - name: t
    stage: clean
"""
SCHEMA = """{"type": "object", "properties": {
  "shop": {"type": "string"}, "amount": {"type": "number"}, "at": {"type": "string", "format": "date-time"}}}"""
FINE = "    given: {orders: [{shop: a, amount: 1, at: 2026-01-01}]}\n    expect: [{shop: a}]\n"


@pytest.fixture
def problems(tmp_path: Path) -> Callable[..., list[str]]:
    """What is said of a test, with its place."""
    (tmp_path / "order.json").write_text(SCHEMA)
    (tmp_path / "good.csv").write_text("shop,amount\na,1.5\n")
    (tmp_path / "bad.csv").write_text("shop,amount\na,much\n")

    def found(text: str) -> list[str]:
        path = tmp_path / "p.yaml"
        path.write_text(PIPELINE + text)
        try:
            load(str(path))
        except PipelineError as error:
            return [f"{p.line}:{p.column} {p.field}: {p.message}; {p.hint}" for p in error.problems]
        return []

    return found


def test_a_correct_test_has_no_problems(problems: Callable[..., list[str]]) -> None:
    assert problems(FINE) == []
    assert problems(FINE.replace("[{shop: a, amount: 1, at: 2026-01-01}]", "good.csv")) == []
    assert problems(FINE.replace("}]}\n", "}, {_watermark: 2026-01-02}, {_value: poison}]}\n", 1)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            FINE.replace("amount: 1", "amuont: 1"),
            "tests[0].given.orders[0].amuont: there is no column 'amuont'; did you mean 'amount'?",
        ),
        (FINE.replace("amount: 1", "amount: much"), "20:40 tests[0].given.orders[0].amount: 'much' is no DOUBLE"),
        (FINE.replace("shop: a,", "shop: 5,"), "tests[0].given.orders[0].shop: 5 is not text; quote it"),
        (FINE.replace("{shop: a,", "{_value: x, shop: a,"), "tests[0].given.orders[0].shop: a record has no 'shop'"),
        (
            FINE.replace("[{shop: a, amount: 1, at: 2026-01-01}]", "bad.csv"),
            "bad.csv, row 1, amount: 'much' is no DOUBLE",
        ),
        (FINE.replace("[{shop: a, amount: 1, at: 2026-01-01}]", "none.csv"), "there is no file"),
        (FINE.replace("}]}\n", "}], shops: [{shop: 1}]}\n", 1), "tests[0].given.shops[0].shop: 1 is not text"),
        (
            FINE.replace("}]}\n", "}], shops: [{_value: x}]}\n", 1),
            "tests[0].given.shops[0]._value: only a topic's rows",
        ),
        (FINE.replace("}]}\n", "}], shops: [{_watermark: 2026-01-01}]}\n", 1), "the input has no watermark"),
        (FINE.replace("}]}\n", "}, {_watermark: soon}]}\n", 1), "'soon' is no moment"),
        (
            FINE + "    unmet: {payed: 1}\n",
            "tests[0].unmet.payed: the stage clean has no expectation 'payed'; did you mean 'paid'?",
        ),
        (
            FINE + "    stopped_by: known\n",
            "tests[0].stopped_by: the stage clean has no expectation 'known' with otherwise: fail",
        ),
        (
            FINE + "    dead_letters: [{eror: x}]\n",
            "tests[0].dead_letters[0].eror: a dead letter has no 'eror'; did you mean 'error'?",
        ),
        (FINE.replace("    expect: [{shop: a}]\n", ""), "tests[0]: a test compares something"),
        (
            FINE.replace("    expect: [{shop: a}]\n", "    in_order: true\n    unmet: {paid: 0}\n"),
            "in_order is the order of expect",
        ),
        (FINE + "    run: batch\n    rows_per_batch: 1\n", "rows_per_batch is for runs as a stream"),
        (FINE + "    rows_per_batch: 0\n", "tests[0].rows_per_batch"),
        (FINE + "    run: both\n", "tests[0].run"),
        (
            FINE.replace("orders:", "order:"),
            "tests[0].given.order: the stage clean reads no 'order'; did you mean 'orders'?",
        ),
        ("    given: {clean: []}\n    expect: []\n", "reads no 'clean'"),
        (
            FINE + "  - {name: u, stage: priced, given: {clean: []}, expect: []}\n",
            "the table 'prices' is that of a topic",
        ),
    ],
)
def test_each_mistake_in_a_test_is_told_at_its_place(problems: Callable[..., list[str]], text: str, said: str) -> None:
    found = problems(text)
    assert any(said in problem for problem in found), found


TABLES = """\
pipeline: p
variables: {lake: lake}
topics:
  items: {value: json, schema: item.json}
stages:
  - name: one
    from: {topic: items}
    to:
      - {topic: out}
      - delta: "${lake}/one"
        partition_by: [id % 2 AS half]
        merge: {keys: id, sequence: v, delete_when: gone, scd: 2}
  - name: two
    from: {topic: items}
    to: [{delta: "${lake}/a"}, {delta: "${lake}/b/", merge: {keys: id}}]
  - name: bare
    from: {topic: items}
    to:
      - {delta: c, partition_by: [id % 2 AS _half], underscore_columns: omit}
      - {delta: d, merge: {keys: id, sequence: v, scd: 2}, underscore_columns: omit}
      - {delta: e, partition_by: [_op], merge: {keys: id}}
  - name: none
    from: {topic: items}
    to: {topic: out}
tests:
  - {name: t, given: {items: [{id: 1}]}, """
ITEM = {"id": "integer", "v": "integer", "gone": "boolean"}


@pytest.mark.parametrize(
    "text",
    [
        "stage: one, expect_table: [{id: 1, HALF: 1, _valid_from: 1, _current: true}]}",
        "stage: one, expect_table: [{_offset: 3, _source_position: x}]}",
        "stage: one, expect_table: []}",
        "stage: one, expect_table: {lake/one: []}}",
        "stage: two, expect_table: {'${lake}/a': [{id: 1}], lake/b: [{id: 1}]}}",
        "stage: two, expect_table: {'${lake}//b': good.csv}}",
        "stage: bare, expect_table: {c: [{id: 1, _half: 1}], d: [{_offset: 1, _source_position: x, _valid_to: 1}]}}",
    ],
)
def test_a_correct_table_has_no_problems(tmp_path: Path, text: str) -> None:
    assert tables_said(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "stage: none, expect_table: []}",
            "26:69 tests[0].expect_table: the stage none has no Delta sink; compare its rows",
        ),
        (
            "stage: two, expect_table: []}",
            "the stage two has 2 Delta sinks; give each table's rows under its path: lake/a:",
        ),
        (
            "stage: two, expect_table: {'${lake}/aa': []}}",
            "26:83 tests[0].expect_table.lake/aa: the stage two has no Delta sink 'lake/aa'; did you mean 'lake/a'?",
        ),
        ("stage: two, expect_table: {lake/b: [], ./lake/b: []}}", "the rows of the table './lake/b' are given twice"),
        ("stage: two, expect_table: {lake/b: [], '${lake}/b': []}}", "the table 'lake/b' is given twice"),
        ("stage: two, expect_table: {'${lak}/b': []}}", "no value for the variable ${lak}"),
        ("stage: two, expect_table: {}}", "tests[0].expect_table"),
        (
            "stage: two, expect_table: {lake/a: [{id: 1}, {di: 1}]}}",
            "tests[0].expect_table.lake/a[1].di: the table lake/a has no column 'di'; known: gone, id, v",
        ),
        ("stage: two, expect_table: {lake/b: [{_op: c}]}}", "the table lake/b/ has no column '_op'"),
        ("stage: two, expect_table: {lake/b: [{_source_position: c}]}}", "has no column '_source_position'"),
        ("stage: two, expect_table: {lake/a: [{_value: c}]}}", "has no column '_value'"),
        ("stage: bare, expect_table: {c: [{_offset: 1}]}}", "the table c has no column '_offset'"),
        ("stage: bare, expect_table: {c: [{_valid_to: 1}]}}", "the table c has no column '_valid_to'"),
        ("stage: bare, expect_table: {d: [{_timestamp: 2026-01-01}]}}", "the table d has no column '_timestamp'"),
        ("stage: bare, expect_table: {e: [{_op: c}]}}", "the table e has no column '_op'"),
        ("stage: two, expect_table: {lake/a: bad.csv}}", "the table lake/a has no column 'shop'"),
        ("stage: two, expect_table: {lake/a: none.csv}}", "tests[0].expect_table.lake/a: there is no file"),
    ],
)
def test_each_mistake_in_an_expected_table_is_told_at_its_place(tmp_path: Path, text: str, said: str) -> None:
    found = tables_said(tmp_path, text)
    assert any(said in problem for problem in found), found


def test_a_table_on_hdfs_is_named_as_its_sink_is(tmp_path: Path) -> None:
    lake = "hdfs://nn:8020/lake"
    right = "stage: two, expect_table: {'${lake}/a': [{id: 1}], 'hdfs://nn:8020/lake/b/': []}}"
    assert tables_said(tmp_path, right, lake) == []
    wrong = tables_said(tmp_path, "stage: two, expect_table: {lake/a: []}}", lake)
    assert any("has no Delta sink 'lake/a'" in problem for problem in wrong)


def tables_said(folder: Path, text: str, lake: str = "lake") -> list[str]:
    fields = ", ".join(f'"{name}": {{"type": "{kind}"}}' for name, kind in ITEM.items())
    (folder / "item.json").write_text(f'{{"type": "object", "properties": {{{fields}}}}}')
    (folder / "good.csv").write_text("id,v\n1,2\n")
    (folder / "bad.csv").write_text("id,shop\n1,a\n")
    (folder / "p.yaml").write_text(TABLES.replace("{lake: lake}", f'{{lake: "{lake}"}}') + text + "\n")
    try:
        load(str(folder / "p.yaml"))
    except PipelineError as error:
        return [f"{p.line}:{p.column} {p.field}: {p.message}; {p.hint}" for p in error.problems]
    return []


def test_the_differences_of_a_table_are_told_with_its_path() -> None:
    wrong = RunOutcome("stream", tables={"lake/a": tuple(compare([{"a": 1}], [])), "lake/b": ()})
    assert not wrong.passed
    assert wrong.lines() == ["table lake/a missing     {a: 1}"]
    assert [len(found) for found in wrong.as_dict()["tables"].values()] == [1, 0]
    assert RunOutcome("stream", tables={"lake/b": ()}).passed
