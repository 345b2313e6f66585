"""Mistakes that declared columns prove, and correct SQL that must never be refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.pipelines.errors import PipelineError
from headwater.pipelines.validation.pipeline_file import load

FILE = """\
pipeline: shop
topics:
  orders: {value: json, schema: order.json}
  others: {value: json, schema: order.json}
stages:
  - name: s
    from: INPUT
    sql: |
      SQL
    to: [SINK]
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "Shop": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "number"}}}},
        "customer": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}
ORDERS = "{topic: orders}"
MARKED = "{topic: orders, watermark: {column: at, delay: 1 hour}}"
OUT = "{topic: out}"


def faults(folder: Path, sql: str, source: str = ORDERS, sink: str = OUT, more: str = "") -> list[str]:
    (folder / "order.json").write_text(json.dumps(SCHEMA))
    path = folder / "p.yaml"
    path.write_text(FILE.replace("INPUT", source).replace("SQL", sql).replace("SINK", sink) + more)
    try:
        load(str(path))
    except PipelineError as error:
        return [problem.message for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM orders",
        "SELECT o.ID, o.`shop`, orders2.id AS i FROM orders o JOIN orders AS orders2 ON o.id = orders2.id",
        "SELECT id + 1 AS n, n * 2 AS m FROM orders",
        "SELECT customer.name, orders.customer.name AS b, lines[0].price AS p FROM orders",
        "SELECT transform(lines, x -> x.price) AS p, filter(lines, l -> l.price > 1) AS q FROM orders",
        "SELECT id, _offset, _partition, current_date, current_timestamp() AS t FROM orders",
        "SELECT line.price FROM orders LATERAL VIEW explode(lines) t AS line",
        "WITH big AS (SELECT id AS n FROM orders) SELECT n FROM big",
        "SELECT n FROM (SELECT id AS n FROM orders)",
        "SELECT timestampadd(HOUR, 1, at) AS t, date_trunc('day', at) AS d FROM orders",
        "SELECT /*+ BROADCAST(orders) */ id FROM orders",
        "SELECT id, row_number() OVER (PARTITION BY shop ORDER BY at) AS n FROM orders",
        "SELECT named_struct('a', id).a AS a, named_struct('b', id) AS b FROM orders",
        "SELECT IDENTIFIER('id') FROM orders",
        "SELECT identifier('i' || 'd') AS n, o.IDENTIFIER('shop') FROM orders o",
        "SELECT * EXCEPT (id), aggregate(array(1), 0, (acc, x) -> acc + x) AS s FROM orders",
    ],
)
def test_correct_sql_is_never_refused(tmp_path: Path, sql: str) -> None:
    assert faults(tmp_path, sql) == []


@pytest.mark.parametrize(
    "sink",
    [
        "{delta: lake/x, partition_by: [to_date(at) AS Day], merge: {keys: [id, day], sequence: [DAY, at]}}",
        "{delta: lake/x, partition_by: [to_date(at) AS d, year(d) AS y, y + 1 AS z]}",
        "{files: out, format: parquet, partition_by: [to_date(at) AS d, year(d) AS y]}",
    ],
)
def test_the_columns_of_partitions_are_the_rows_as_well(tmp_path: Path, sink: str) -> None:
    assert faults(tmp_path, "SELECT id, at FROM orders", sink=sink) == []


def test_a_partition_is_made_of_what_is_there_before_it(tmp_path: Path) -> None:
    merge = "merge: {keys: [id], delete_when: d > 1}"
    sink = f"{{delta: lake/x, partition_by: [year(d) AS y, to_date(at) AS d], {merge}}}"
    found = faults(tmp_path, "SELECT id, at FROM orders", sink=sink)
    assert found == ["there is no column 'd'"] * 2


@pytest.mark.parametrize(
    ("when", "found"),
    [
        ("ID > 1 AND `AT` IS NOT NULL", []),
        ("_offset % 2 = 0 AND at < current_timestamp()", []),
        ("idd > 1", ["there is no column 'idd'"]),
        ("made_on IS NOT NULL", ["there is no column 'made_on'"]),  # which only the sink adds
    ],
)
@pytest.mark.parametrize(
    "sink",
    [
        "delta: lake/x, partition_by: [to_date(at) AS made_on]",
        "files: out, format: json, partition_by: [to_date(at) AS made_on]",
        "topic: out",
        "jdbc: 'jdbc:x:y', table: t",
        "python: {file: f.py, function: f}",
    ],
)
def test_a_condition_of_a_sink_is_one_of_the_stages_rows(
    tmp_path: Path, sink: str, when: str, found: list[str]
) -> None:
    (tmp_path / "f.py").write_text("def f(rows, batch):\n    pass\n")
    assert faults(tmp_path, "SELECT id, at FROM orders", sink=f'{{{sink}, when: "{when}"}}') == found


def test_groups_with_a_watermark_are_correct(tmp_path: Path) -> None:
    sql = "SELECT window.start AS hour, shop, count(*) AS n FROM orders GROUP BY window(at, '1 hour'), shop"
    assert faults(tmp_path, sql, MARKED, "{topic: out, key: shop, headers: {h: hour}}") == []


@pytest.mark.parametrize(
    ("sql", "source", "sink", "message"),
    [
        ("SELECT pric FROM orders", ORDERS, OUT, "there is no column 'pric'"),
        ("SELECT o.idd FROM orders o", ORDERS, OUT, "there is no column 'o.idd'"),
        ("SELECT uper(shop) AS s FROM orders", ORDERS, OUT, "there is no function 'uper'"),
        ("SELECT id AS n FROM orders", ORDERS, "{topic: out, key: id}", "there is no column 'id'"),
        (
            "SELECT id AS n FROM orders",
            ORDERS,
            "{delta: lake/x, merge: {keys: [id]}}",
            "the key 'id' is none of the rows' columns",
        ),
        (
            "SELECT id, shop, at FROM orders",
            ORDERS,
            "{delta: lake/x, merge: {keys: [id], columns: [SHOP, town, At], delete_when: shop = ''}}",
            "the column 'town' is none of the rows' columns",
        ),
        (
            "SELECT id FROM orders",
            "{topic: orders, watermark: {column: ts, delay: 1 hour}}",
            OUT,
            "the watermark's column 'ts' is none of the rows' columns",
        ),
        (
            "SELECT shop, count(*) AS n FROM orders GROUP BY shop",
            ORDERS,
            OUT,
            "mode: append writes a group once it is final, and without a watermark none ever is",
        ),
        (
            "SELECT a.id FROM a LEFT JOIN b ON a.id = b.id",
            "[{topic: orders, as: a}, {topic: others, as: b}]",
            OUT,
            "an outer join of streams writes a row without match once none can come, which a watermark tells",
        ),
    ],
)
def test_a_mistake_is_found_without_spark(tmp_path: Path, sql: str, source: str, sink: str, message: str) -> None:
    assert faults(tmp_path, sql, source, sink) == [message]


@pytest.mark.parametrize(
    ("merge", "field"),
    [
        ("keys: [id], except: [Shop, town]", "stages[0].to[0].merge.except"),
        (
            "keys: [id], sequence: at, scd: 2, track_history: {except: [Shop, town]}",
            "stages[0].to[0].merge.track_history.except",
        ),
    ],
)
def test_an_excepted_column_that_the_rows_have_lost_is_a_warning(tmp_path: Path, merge: str, field: str) -> None:
    (tmp_path / "order.json").write_text(json.dumps(SCHEMA))
    text = FILE.replace("INPUT", ORDERS).replace("SQL", "SELECT id, shop, at FROM orders").replace("others:", "out:")
    path = tmp_path / "p.yaml"
    path.write_text(text.replace("SINK", f"{{delta: x, merge: {{{merge}}}}}, {{topic: out}}"))
    [found] = load(str(path)).warnings
    assert (found.field, found.message) == (field, "the column 'town' is none of the rows' columns")


def test_mistakes_are_told_together(tmp_path: Path) -> None:
    found = faults(tmp_path, "SELECT uper(shop) AS s, pric FROM orders", ORDERS, "{topic: out, key: nothing}")
    assert found == ["there is no function 'uper'", "there is no column 'pric'", "there is no column 'nothing'"]


def test_code_may_register_functions(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def f(rows):\n    return rows\n")
    more = "  - {name: t, from: {topic: orders}, python: {file: f.py, function: f}, to: [{topic: out2}]}\n"
    assert faults(tmp_path, "SELECT uper(shop) AS s FROM orders", more=more) == []
