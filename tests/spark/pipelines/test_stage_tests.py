"""`tests:` of pipelines: stages fed with rows, as a batch and as a stream, without a broker."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.cli.demo.files import conf_file
from headwater.pipelines.errors import PipelineError
from headwater.pipelines.starters import PIPELINE_FILE, TEMPLATES, fill
from headwater.pipelines.testing.results import Judged
from headwater.pipelines.testing.running import StageTests, chosen
from headwater.pipelines.validation.pipeline_file import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

EXAMPLES = sorted(Path(conf_file("pipelines", "flights.yaml")).parent.glob("*.yaml"))

PIPELINE = """\
pipeline: shop
topics:
  orders: {value: json, schema: order.json}
  changes: {value: json, schema: order.json}
  texts: {value: string}
tables:
  shops: {format: csv, path: none.csv, schema: "shop STRING, city STRING"}
  rates: {format: csv, path: rates.csv}
stages:
  - name: clean
    from: {topic: orders}
    expect:
      - {name: paid, that: amount > 0}
      - {name: known, that: city IS NOT NULL, otherwise: drop}
      - {name: small, that: amount < 1, otherwise: warn}
    sql: SELECT o.*, city FROM orders o LEFT JOIN shops USING (shop)
    to: {topic: clean, key: shop, when: amount > 6}
  - name: strict
    from: {topic: orders}
    expect: [{name: paid, that: amount > 0, otherwise: fail}]
    to: {topic: strict}
  - name: totals
    from: {topic: clean, watermark: {column: at, delay: 10 minutes}}
    sql: SELECT window(at, '1 hour') AS hour, shop, sum(amount) AS amount FROM clean GROUP BY 1, 2
    to: {topic: totals}
  - name: counts
    from: {topic: orders}
    mode: update
    sql: SELECT shop, count(*) AS orders FROM orders GROUP BY shop
    to: {topic: counts}
  - name: ever
    from: {topic: orders}
    mode: complete
    sql: SELECT shop, count(*) AS orders FROM orders GROUP BY shop
    to: {delta: lake/ever}
  - name: ranked
    from: {topic: orders}
    steps:
      - {sql: "SELECT shop, amount FROM orders ORDER BY amount DESC", each_batch: true}
    to: {topic: ranked}
  - name: mirror
    from: {topic: changes, envelope: debezium, as: c}
    to: {delta: lake/mirror, merge: {keys: shop, delete_when: _op = 'd'}}
  - name: kept
    from: {topic: orders}
    expect:
      - {name: paid, that: amount > 0}
      - {name: sane, that: amount < 1000, otherwise: fail}
    to:
      - {delta: LAKE/added, partition_by: [upper(shop) AS big], properties: {delta.enableChangeDataFeed: true}}
      - {delta: lake/clustered, cluster_by: [shop]}
      - {delta: lake/latest, merge: {keys: shop, sequence: at, delete_when: amount = 13}}
      - {delta: lake/states, merge: {keys: shop, sequence: at, delete_when: amount = 13, scd: 2}}
  - name: doubled
    from: {files: in, format: json, as: lines}
    python: {file: steps.py, function: doubled}
    to: {files: out, format: json}
  - name: lengths
    from: {topic: texts}
    sql: SELECT value, length(value) AS n, rate FROM texts CROSS JOIN rates
    to: {topic: lengths}
"""
ORDER = """{"type": "object", "required": ["shop"], "properties": {
  "shop": {"type": "string"}, "amount": {"type": ["number", "null"]},
  "at": {"type": "string", "format": "date-time"}}}"""


def files(folder: Path) -> list[str]:
    """What is in a folder, but for the bytecode that Python keeps of steps.py."""
    return sorted(str(found) for found in folder.rglob("*") if "__pycache__" not in found.parts)


@pytest.fixture
def run(
    delta_spark: SparkSession, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], dict[str, Judged]]:
    """Runs the tests of the pipeline above; gives their results by name."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (tmp_path / "order.json").write_text(ORDER)
    (tmp_path / "rates.csv").write_text("rate\n2\n")
    (tmp_path / "steps.py").write_text("def doubled(rows):\n    return rows.selectExpr('n * 2 AS n')\n")
    (tmp_path / "mirror.csv").write_text("shop,amount\na,2\n")
    (tmp_path / "orders.csv").write_text("shop,amount\na,5\nb,7.5\n")

    def results(tests: str) -> dict[str, Judged]:
        path = tmp_path / "shop.yaml"
        path.write_text(PIPELINE.replace("LAKE", str(tmp_path / "elsewhere")) + "tests:\n" + tests)
        loaded = load(str(path), environ={})
        before = files(tmp_path)
        found = StageTests(delta_spark, loaded, chosen(loaded, [])).run(lambda result: None)
        assert files(tmp_path) == before, "a test has written something"
        assert not list(temporary.glob("headwater-test-*")), "a test has left something"
        return {result.name: result for result in found}

    return results


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_tests_of_the_examples_pass(delta_spark: SparkSession, path: Path) -> None:
    loaded = load(str(path), environ={})
    results = StageTests(delta_spark, loaded, chosen(loaded, [])).run(lambda result: None)
    assert results
    assert ["\n".join(result.lines()) for result in results if not result.passed] == []


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_tests_of_the_templates_pass(delta_spark: SparkSession, tmp_path: Path, template: str) -> None:
    for path, text in fill(TEMPLATES[template], "shop").files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    loaded = load(str(tmp_path / PIPELINE_FILE), environ={})
    results = StageTests(delta_spark, loaded, chosen(loaded, [])).run(lambda result: None)
    assert results
    assert ["\n".join(result.lines()) for result in results if not result.passed] == []


def test_stages_of_every_kind_are_tested(run: Callable[[str], dict[str, Judged]]) -> None:
    results = run("""\
  - name: rows_records_and_expectations
    stage: clean
    rows_per_batch: [3, 10]
    given:
      orders:
        - {shop: a, amount: 5}
        - {shop: a, amount: 0}
        - {shop: nowhere, amount: 1}
        - {_value: "{", _key: k, _headers: {h: x}}
        - {_value: !!binary /w==}
        - {_value: {amount: 3}}
      shops: [{shop: a, city: Bath}]
    expect: [{shop: a, amount: 5.0, city: Bath}]
    unmet: {paid: 1, known: 1, small: 1}
    dead_letters:
      - {expectation: paid, value: {shop: a}, source_offset: 1}
      - {error: the value is not JSON, key: k, source_offset: 3}
      - {error: the value is not JSON, source_offset: 4}
      - {error: the required field shop is missing or null, value: {amount: 3}}
  - name: rows_of_a_file
    stage: clean
    run: batch
    given: {orders: orders.csv, shops: [{shop: a, city: Bath}, {shop: b, city: York}]}
    expect: [{amount: 5.0, city: Bath}, {amount: 7.5, city: York}]
    dead_letters: 0
  - name: a_stage_is_stopped
    stage: strict
    given: {orders: [{shop: a, amount: 0}]}
    stopped_by: paid
    expect: []
  - name: windows_close_and_late_rows_are_left_out
    stage: totals
    given:
      clean:
        - {shop: a, amount: 1, at: 2026-01-01T10:00:00Z}
        - {shop: a, amount: 2, at: 2026-01-01T10:59:00Z}
        - {_watermark: 2026-01-01T11:00:00Z}
        - {shop: a, amount: 4, at: 2026-01-01T10:30:00Z}
        - {shop: b, amount: 8, at: 2026-01-01T11:05:00Z}
        - {_watermark: 2026-01-01T12:00:00Z}
    expect:
      - {hour: {start: 2026-01-01T10:00:00Z}, shop: a, amount: 3.0}
      - {hour: {start: 2026-01-01T11:00:00Z}, shop: b, amount: 8.0}
  - name: every_micro_batch_of_an_update_counts
    stage: counts
    rows_per_batch: 1
    given: {orders: [{shop: a}, {shop: a}]}
    expect: [{shop: a, orders: 1}, {shop: a, orders: 2}]
  - name: rows_come_in_their_order
    stage: ranked
    given: {orders: [{shop: a, amount: 1}, {shop: b, amount: 3}, {shop: c, amount: 2}]}
    in_order: true
    expect: [{shop: b}, {shop: c}, {shop: a}]
  - name: changes_as_rows_and_as_they_come
    stage: mirror
    given:
      c:
        - {shop: a, amount: 1, _op: c, _sequence: 1}
        - {_value: {before: null, after: {shop: b, amount: 2}, op: u, ts_ms: 7}}
    expect: [{shop: a, _op: c}, {shop: b, amount: 2.0, _op: u, _sequence: 7}]
  - name: columns_that_nothing_declares_are_those_of_the_rows
    stage: doubled
    given: {lines: [{n: 4}]}
    expect: [{n: 8}]
  - name: a_table_that_is_there_need_not_be_given
    stage: lengths
    run: [batch, stream]
    given: {texts: [{value: abc}]}
    expect: [{value: abc, n: 3, rate: 2}]
""")
    assert ["\n".join(result.lines()) for result in results.values() if not result.passed] == []
    ways = {name: [outcome.way for outcome in result.runs] for name, result in results.items()}
    assert ways["rows_records_and_expectations"] == [
        "batch", "stream, 3 rows a micro-batch", "stream, 10 rows a micro-batch"
    ]  # fmt: skip
    assert ways["every_micro_batch_of_an_update_counts"] == ["stream, 1 row a micro-batch"]
    assert ways["windows_close_and_late_rows_are_left_out"] == ["stream"]


KEPT = """\
    stage: kept
    given:
      orders:
        - {shop: a, amount: 1, at: 2026-01-01}
        - {shop: a, amount: 2, at: 2026-01-03}
        - {shop: b, amount: 3, at: 2026-01-01}
        - {shop: b, amount: 13, at: 2026-01-03}
        - {shop: b, amount: 4, at: 2026-01-02}
        - {shop: c, amount: 0, at: 2026-01-01}
        - {shop: c, amount: 6}
        - {shop: a, amount: 5, at: 2026-01-02}
        - {shop: a, amount: 7, at: 2026-01-02, _offset: 2}
"""


def test_tables_are_what_a_run_would_make_of_the_rows(run: Callable[[str], dict[str, Judged]]) -> None:
    results = run(f"""\
  - name: every_way_to_write_a_table
{KEPT}
    rows_per_batch: 5
    unmet: {{paid: 1, sequence_is_not_null: 1}}
    expect_table:
      elsewhere/added:
        - {{shop: a, big: A, amount: 1.0, _topic: orders, _offset: 0}}
        - {{shop: a, big: A, amount: 2.0}}
        - {{shop: b, big: B, amount: 3.0}}
        - {{shop: b, big: B, amount: 13.0}}
        - {{shop: b, big: B, amount: 4.0}}
        - {{shop: a, big: A, amount: 5.0, _offset: 7}}
        - {{shop: a, big: A, amount: 7.0, _offset: 2}}
      ./lake/clustered: [{{shop: a}}, {{shop: a}}, {{shop: a}}, {{shop: a}}, {{shop: b}}, {{shop: b}}, {{shop: b}}]
      lake/latest: [{{shop: a, amount: 2.0}}]
      lake/states:
        - {{shop: a, amount: 1.0, _valid_from: 2026-01-01, _valid_to: 2026-01-02, _current: false}}
        - {{shop: a, amount: 5.0, _valid_from: 2026-01-02, _valid_to: 2026-01-03, _current: false}}
        - {{shop: a, amount: 2.0, _valid_from: 2026-01-03, _valid_to: null, _current: true}}
        - {{shop: b, amount: 3.0, _valid_from: 2026-01-01, _valid_to: 2026-01-02, _current: false}}
        - {{shop: b, amount: 4.0, _valid_from: 2026-01-02, _valid_to: 2026-01-03, _current: false}}
  - name: the_last_micro_batch_of_a_whole_counts_and_replaces_the_table
    stage: ever
    rows_per_batch: 2
    given: {{orders: [{{shop: a}}, {{shop: a}}, {{shop: b}}]}}
    expect: [{{shop: a, orders: 2}}, {{shop: b, orders: 1}}]
    expect_table: [{{shop: a, orders: 2}}, {{shop: b, orders: 1}}]
  - name: the_last_to_arrive_counts_without_a_sequence
    stage: mirror
    rows_per_batch: 2
    given:
      c:
        - {{shop: a, amount: 1, _op: c, _sequence: 1}}
        - {{shop: a, amount: 2, _op: u, _sequence: 2}}
        - {{shop: b, amount: 3, _op: c, _sequence: 3}}
        - {{shop: b, amount: 3, _op: d, _sequence: 4}}
    expect_table: mirror.csv
  - name: what_stops_the_stage_is_not_written
    stage: kept
    run: stream
    rows_per_batch: 1
    given: {{orders: [{{shop: a, amount: 1, at: 2026-01-01}}, {{shop: b, amount: 1000, at: 2026-01-01}}]}}
    stopped_by: sane
    expect_table: {{lake/latest: [{{shop: a}}]}}
  - name: no_row_makes_no_table
    stage: mirror
    given: {{c: []}}
    expect_table: []
""")
    assert ["\n".join(result.lines()) for result in results.values() if not result.passed] == []


def test_what_differs_in_a_table_is_told_with_its_path(run: Callable[[str], dict[str, Judged]]) -> None:
    results = run(f"""\
  - name: wrong
{KEPT}
    run: batch
    expect_table: {{lake/latest: [{{shop: a, amount: 5.0}}, {{shop: b}}]}}
""")
    lines = results["wrong"].lines()
    assert lines[2:] == [
        "        table lake/latest missing     {shop: a, amount: 5.0}",
        "          nearest   {shop: a, amount: 2.0}: amount is 2.0, not 5.0",
        "        table lake/latest missing     {shop: b}",
    ]


def test_what_differs_is_told_in_every_way(run: Callable[[str], dict[str, Judged]]) -> None:
    results = run("""\
  - name: wrong
    stage: clean
    run: batch
    given: {orders: [{shop: a, amount: 5}, {shop: a, amount: 0}], shops: [{shop: a, city: Bath}]}
    expect: [{shop: a, amount: 6.0}, {shop: z}]
    unmet: {paid: 0}
    dead_letters: []
  - name: not_stopped
    stage: strict
    run: stream
    given: {orders: [{shop: a, amount: 1}]}
    stopped_by: paid
  - name: fails
    stage: lengths
    run: stream
    given: {texts: [{value: x}], rates: [{rate: 1}]}
    expect: [{n: 2}]
""")
    lines = results["wrong"].lines()
    assert re.fullmatch(r"FAIL  wrong  \(.*shop\.yaml:\d+:5, stage clean\)", lines[0])
    assert "        1 rows do not meet paid, and 0 are expected" in lines
    assert "        missing     {shop: a, amount: 6.0}" in lines
    assert "          nearest   {shop: a, amount: 5.0}: amount is 5.0, not 6.0" in lines
    assert "        missing     {shop: z}" in lines
    assert any(line.startswith("        dead letter unexpected  {topic: orders.dead_letters") for line in lines)
    assert "expected to be stopped by paid, and was stopped not" in results["not_stopped"].lines()[2]
    assert "n is 1, not 2" in "\n".join(results["fails"].lines()) or not results["fails"].passed


def test_what_spark_says_of_a_row_is_the_tests_failure(run: Callable[[str], dict[str, Judged]]) -> None:
    results = run("""\
  - name: divided
    stage: doubled
    given: {lines: [{n: 9223372036854775807}]}
    expect: [{n: 1}]
""")
    (batch, stream) = results["divided"].runs
    for outcome in (batch, stream):
        assert "the stage failed: " in outcome.faults[0]
        assert "overflow" in outcome.faults[0].lower()


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("{name: t, stage: clean, given: {orders: [], shops: [{shop: a, city: x}]}, expect: [{cty: x}]}",
         r"tests\[0\].expect\[0\].cty: there is no column 'cty'; did you mean 'city'"),
        ("{name: t, stage: clean, given: {orders: [], shops: [{shop: a, city: x}]}, expect: [{amount: much}]}",
         r"tests\[0\].expect\[0\].amount: 'much' is no DOUBLE"),
        ("{name: t, stage: mirror, given: {c: []}, expect_table: [{shop: 5}]}",
         r"tests\[0\].expect_table\[0\].shop: 5 is not text"),
        ("{name: t, stage: totals, given: {clean: [{shp: a}]}, expect: []}",
         r"tests\[0\].given.clean\[0\].shp: there is no column 'shp'"),
        ("{name: t, stage: clean, given: {orders: []}, expect: []}",
         r"tests\[0\].given: the table 'shops' is not given, and cannot be read: .*; give its rows: shops: \[\]"),
    ],
)  # fmt: skip
def test_mistakes_that_only_spark_sees_are_told_before_any_test_runs(
    run: Callable[[str], dict[str, Any]], test: str, said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        run(f"  - {test}\n")
