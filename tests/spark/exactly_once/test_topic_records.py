"""Rows become records: key, value, headers, timestamp, tombstones; and in which order they go."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

import pytest

from headwater.pipelines import columns
from headwater.pipelines.dead_letters import frames as dead_letters
from headwater.pipelines.definition import TopicSink
from headwater.pipelines.formats.topic_encoding import plain
from headwater.pipelines.sinks import topic as topic_sink
from headwater.pipelines.spark.session_settings import settings_for_a_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


def test_key_value_headers_timestamp_and_tombstones_are_expressions(retrying_spark: SparkSession) -> None:
    rows = retrying_spark.sql(
        "SELECT * FROM VALUES (1, 'a', timestamp'2026-01-01 00:00:01', false), (2, null, null, true), "
        "(3, 'c', null, null) AS t(id, name, at, gone)"
    )
    sink = TopicSink(
        topic="t",
        key="id",
        value="struct(id, name)",
        headers={"name": "name", "id": "id"},
        timestamp="at",
        tombstone_when="gone",
    )
    made = topic_sink.records(rows, sink, plain("json"))
    assert made.columns == ["key", "value", "headers", "timestamp_ms"]
    got = {bytes(row.key): row for row in made.collect()}
    at_ms = int(dt.datetime(2026, 1, 1, 0, 0, 1, tzinfo=dt.UTC).timestamp() * 1000)
    assert bytes(got[b"1"].value) == b'{"id":1,"name":"a"}'
    assert (got[b"1"].timestamp_ms, got[b"2"].timestamp_ms) == (at_ms, None)
    assert got[b"2"].value is None
    assert got[b"3"].value is not None, "a condition that is null is not met"
    assert [(header.key, bytes(header.value)) for header in got[b"1"].headers] == [("name", b"a"), ("id", b"1")]
    assert [header.key for header in got[b"2"].headers] == ["id"], "a header without a value is left out"


def source_rows(spark: SparkSession, rows: int = 3000) -> DataFrame:
    """Rows that know their record: three source partitions, each in order, each key in one of them."""
    return spark.range(0, rows, 1, 3).selectExpr(
        f"cast(id div {rows // 3} AS int) AS {columns.PARTITION}",
        f"id % {rows // 3} AS {columns.OFFSET}",
        f"'t' AS {columns.TOPIC}",
        "concat('k', id % 7) AS k",
    )


def is_ordered(places: Iterable[tuple[Hashable, int, int]]) -> bool:
    """Whether what belongs together lies in one task, by ascending offset: (what, task, offset) as rows come."""
    seen: dict[Hashable, list[tuple[int, int]]] = {}
    for together, task, offset in places:
        seen.setdefault(together, []).append((task, offset))
    return all(
        before[0] == after[0] and before[1] < after[1]
        for found in seen.values()
        for before, after in itertools.pairwise(found)
    )


def places(frame: DataFrame) -> list[tuple[Hashable, int, int]]:
    """Of rows that know their record; those of one key and one source partition belong together."""
    found = frame.selectExpr("*", "spark_partition_id() AS task").collect()
    return [((row.k, row[columns.PARTITION]), row.task, row[columns.OFFSET]) for row in found]


def test_rows_that_nothing_reordered_are_left_as_they_are(retrying_spark: SparkSession) -> None:
    sink = TopicSink(topic="t", key="k")
    small = retrying_spark.createDataFrame([(f"k{n}", n) for n in range(7)], "k string, n int")
    rows = source_rows(retrying_spark).join(small.hint("broadcast"), "k").where("n < 6")
    rows.persist()
    assert not topic_sink.reorders(rows)
    assert topic_sink.in_source_order(rows, sink, is_stateful=False) is rows
    assert is_ordered(places(rows))
    rows.unpersist()


def test_rows_that_were_shuffled_are_brought_back_into_the_order_of_their_source(retrying_spark: SparkSession) -> None:
    sink = TopicSink(topic="t", key="k")
    mixed = source_rows(retrying_spark).repartition(5).sortWithinPartitions(columns.OFFSET, ascending=False)
    mixed.persist()
    assert topic_sink.reorders(mixed)
    assert not is_ordered(places(mixed))
    ordered = topic_sink.in_source_order(mixed, sink, is_stateful=False)
    assert ordered.columns == mixed.columns
    assert ordered.count() == 3000
    assert is_ordered(places(ordered))
    mixed.unpersist()


def test_rows_without_a_source_have_no_order_to_keep(retrying_spark: SparkSession) -> None:
    sums = source_rows(retrying_spark).groupBy("k").count()
    assert topic_sink.in_source_order(sums, TopicSink(topic="t", key="k"), is_stateful=False) is sums
    rows = source_rows(retrying_spark).repartition(5)
    assert topic_sink.in_source_order(rows, TopicSink(topic="t"), is_stateful=False) is rows


def test_what_comes_out_of_state_is_ordered_if_it_knows_its_source(retrying_spark: SparkSession) -> None:
    rows = source_rows(retrying_spark)
    ordered = topic_sink.in_source_order(rows, TopicSink(topic="t", key="k"), is_stateful=True)
    assert ordered is not rows
    assert is_ordered(places(ordered))


def test_dead_letters_are_in_the_order_of_their_source_though_a_join_shuffled_them(
    retrying_spark: SparkSession,
) -> None:
    rejected = retrying_spark.range(0, 600, 1, 2).selectExpr(
        f"'t' AS {columns.TOPIC}",
        f"cast(id div 300 AS int) AS {columns.PARTITION}",
        f"id % 300 AS {columns.OFFSET}",
        f"cast(concat('k', id % 3) AS binary) AS {columns.KEY}",
        f"cast(cast(id AS string) AS binary) AS {columns.VALUE}",
        f"'no JSON' AS {columns.ERROR}",
    )
    place = (columns.TOPIC, columns.PARTITION, columns.OFFSET)
    headers = rejected.selectExpr(*place, "array(struct('own' AS key, cast('x' AS binary) AS value)) AS headers")
    shuffles = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.adaptive.enabled": "false"}
    with settings_for_a_job(retrying_spark, shuffles):
        letters = dead_letters.undecodable(rejected, "p", "s", headers)
        rows = letters.selectExpr("*", "spark_partition_id() AS task").collect()
    assert len(rows) == 600
    assert all(row.headers[0].key == "own" for row in rows)
    numbers = [(row.key, row.task, int(row.value)) for row in rows]
    assert is_ordered(((bytes(key), number // 300), task, number) for key, task, number in numbers)
