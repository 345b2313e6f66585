"""`preview`: what a stage would write of records that are there, with no trace left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.sql.known_relations import left_out
from headwater.pipelines.analysis.analysis import Analysis, analyse
from headwater.pipelines.datasource.errors import SourceError
from headwater.pipelines.definition import Loaded
from headwater.pipelines.preview.stage_preview import Preview, Request, StagePreview
from headwater.pipelines.preview.start_offsets import parse_start
from headwater.pipelines.sources.table_gaps import TableGap
from headwater.pipelines.sql.relations import Known
from headwater.pipelines.validation.pipeline_file import load

pytestmark = pytest.mark.slow

PIPELINE = """\
pipeline: shop
topics:
  "@orders": {partitions: 2, value: json, schema: order.json}
  "@prices": {value: json, schema: order.json}
tables:
  shops: {format: csv, path: shops.csv}
  prices: {topic: "@prices"}
stages:
  - name: clean
    from: {topic: "@orders", as: orders}
    expect: [{name: paid, that: amount > 0}, {name: much, that: amount > 1000, otherwise: warn}]
    sql: SELECT o.*, city FROM orders o JOIN shops USING (shop)
    to:
      - {topic: "@clean", key: shop, headers: {city: city}}
      - {delta: lake/orders, partition_by: [city]}
      - {delta: lake/latest, merge: {keys: shop}}
      - {files: out, format: json}
      - {topic: "@large", key: shop, when: amount > 5}
  - name: totals
    from: {topic: "@clean", as: clean, watermark: {column: _timestamp, delay: 1 hour}}
    expect: [{name: small, that: amount < 100, otherwise: fail}]
    sql: SELECT shop, window(_timestamp, '1 day') AS day, sum(amount) AS amount FROM clean GROUP BY 1, 2
    to: {delta: lake/totals}
  - name: priced
    from: {topic: "@orders", as: orders}
    sql: SELECT orders.shop, prices.amount FROM orders JOIN prices ON orders.shop = prices.shop
    to: {delta: lake/priced}
"""


def parts(lab: Any) -> tuple[Loaded, Analysis]:
    existing = frozenset(topic.name for topic in lab.admin.list_topics())
    loaded = load(str(lab.folder / "pipeline.yaml"), {}, existing, environ={})
    return loaded, analyse(lab.spark, loaded, lab.servers)


@pytest.fixture
def preview(lab: Any) -> Any:
    lab.write(
        "order.json",
        '{"type": "object", "properties": {"shop": {"type": "string"}, "amount": {"type": "number"}}}',
    )
    lab.write("shops.csv", "shop,city\na,Bath\nb,York\n")
    lab.write("pipeline.yaml", PIPELINE.replace("@", lab.prefix))
    (lab.folder / "empty").mkdir()

    def show(stage: str, start: str = "earliest", *, records: int = 1000, rows: int = 10) -> Preview:
        loaded, analysis = parts(lab)
        of = StagePreview(
            lab.spark, loaded, loaded.pipeline.stage(stage), analysis, lab.servers, str(lab.folder / "empty")
        )
        return of.compute(Request(parse_start(start), records, rows))

    return show


def test_rows_of_each_sink_are_shown_and_nothing_is_written(lab: Any, preview: Any) -> None:
    lab.produce("@orders", [{"shop": "a", "amount": 5}, {"shop": "b", "amount": 0}, "no JSON"])
    topics = {topic.name for topic in lab.admin.list_topics()}
    files = {str(path) for path in Path(lab.folder).rglob("*")}
    found = preview("clean")
    assert {topic.name for topic in lab.admin.list_topics()} == topics
    assert {str(path) for path in Path(lab.folder).rglob("*")} == files
    (read,) = found.inputs
    assert (read.rows, read.undecodable, read.there) == (3, 1, 3)
    assert (found.written, found.unmet, found.dead_letters) == (1, {"paid": 1, "much": 1}, 2)
    assert not found.keeps_state
    assert found.stopped_by == []
    topic, table, merged, out, large = found.sinks
    assert topic.rows == [{"key": "a", "value": '{"shop":"a","amount":5.0,"city":"Bath"}', "headers": ["city=Bath"]}]
    assert (topic.how, merged.how) == ("key shop", "merge (SCD 1) by shop")
    assert {"shop": "a", "amount": 5.0, "city": "Bath", "_offset": 0}.items() <= table.rows[0].items()
    assert out.rows == [{"shop": "a", "amount": 5.0, "city": "Bath"}]
    assert (large.how, large.count, large.rows) == ("key shop, when amount > 5", 0, [])
    assert [sink.count for sink in found.sinks] == [1, 1, 1, 1, 0]
    assert {letter["value"] for letter in found.letters} == {"no JSON", '{"shop": "b", "amount": 0}'}


def test_a_preview_begins_where_it_is_told_and_reads_no_more_than_it_may(lab: Any, preview: Any) -> None:
    lab.produce("@orders", [{"shop": "a", "amount": n} for n in range(1, 11)])

    def amounts(*arguments: Any, **more: Any) -> list[float]:
        return sorted(row["amount"] for row in preview("clean", *arguments, **more).sinks[1].rows)

    assert amounts("earliest", records=3) == [1, 2, 3]
    assert amounts("latest", records=3) == [8, 9, 10]
    assert amounts("7") == [8, 9, 10]
    assert amounts("99") == []
    assert amounts("2100-01-01") == []
    assert len(amounts("2001-01-01")) == 10
    assert len(amounts(rows=2)) == 2
    large = preview("clean", rows=2).sinks[4]
    assert (large.count, len(large.rows)) == (5, 2)
    assert all(json.loads(row["value"])["amount"] > 5 for row in large.rows)


def test_a_stage_that_keeps_state_says_so_and_one_that_would_stop_says_that(lab: Any, preview: Any) -> None:
    lab.produce("@orders", [{"shop": "a", "amount": 1}])
    lab.produce("@clean", [{"shop": "a", "amount": 60, "city": "Bath"}, {"shop": "a", "amount": 50, "city": "Bath"}])
    found = preview("totals")
    assert found.keeps_state
    assert (found.stopped_by, found.unmet, found.written) == (["small"], {"small": 1}, 0)


def test_records_that_a_table_leaves_out_are_counted_and_the_first_is_named(lab: Any, preview: Any) -> None:
    lab.produce("@orders", [{"shop": "a", "amount": 1}])
    good, bad = {"shop": "a", "amount": 1}, {"shop": "a", "amount": "much"}
    lab.produce("@prices", [
        ("a", good), ("b", bad), ("b", bad), ("c", "no JSON"), ("d", bad), ("d", good), ("e", bad), ("e", None),
        (None, bad),
    ])  # fmt: skip
    found = preview("priced")
    error = "the value does not fit the schema: the field amount is no DOUBLE"
    topic = f"{lab.prefix}prices"
    assert found.gaps == [TableGap("prices", topic, 2, 0, 2, error)]
    assert found.written == 2
    assert preview("clean").gaps == []
    loaded, analysis = parts(lab)
    known = Known(analysis.columns, loaded)
    lacks = f"table prices lacks 2 records of topic {topic} that cannot be decoded"
    said = f"{lacks}; the first is partition 0, offset 2: {error}"
    assert left_out(lab.spark, lab.servers, known, ["SELECT * FROM Prices"]) == [said]
    assert left_out(lab.spark, lab.servers, known, ["SELECT * FROM shops"]) == []


def test_a_topic_that_is_not_there_is_an_error_and_is_not_made(lab: Any, preview: Any) -> None:
    with pytest.raises(SourceError, match="clean"):
        preview("totals")
    assert f"{lab.prefix}clean" not in {topic.name for topic in lab.admin.list_topics()}
