"""Merges of random changes in random batches beside the rule in plain Python (`change_rule`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.pipelines.definition import DeltaSink, JdbcSink
from headwater.pipelines.sinks import delta_deletes, delta_history, delta_merge, jdbc
from headwater.pipelines.sinks.change_rule import KeyChange, history, latest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEYS, MOMENTS, CHANGES, BATCHES = 4, 5, 32, 5
DDL = "id INT, v INT, name STRING, gone BOOLEAN, _source_position STRING, _offset BIGINT"

Row = tuple[int, int, str, bool, str | None, int]


def changes(seed: int) -> list[Row]:
    """Changes in the order of their arrival: some of one moment, deletes, late ones; some know where they were made."""
    dice = random.Random(seed)
    places = list(range(CHANGES))
    dice.shuffle(places)
    return [
        (dice.randrange(KEYS), dice.randrange(MOMENTS), f"n{n}", dice.random() < 0.35,
         f"{place:020}" if dice.random() < 0.7 else None, n)
        for n, place in enumerate(places)
    ]  # fmt: skip


def in_batches(spark: SparkSession, given: list[Row], seed: int, write: Callable[[DataFrame, int], None]) -> None:
    """Write them in batches of any size; the last one runs twice."""
    cuts = sorted(random.Random(seed).sample(range(1, CHANGES), BATCHES - 1))
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, CHANGES], strict=True)):
        write(spark.createDataFrame(given[start:end], DDL), number)
    write(spark.createDataFrame(given[cuts[-1] :], DDL), BATCHES - 1)


def of_rule(given: list[Row]) -> list[KeyChange]:
    return [
        KeyChange(key, v, (place or "", offset), None if gone else (key, v, name))
        for key, v, name, gone, place, offset in given
    ]


def shown(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


@pytest.mark.parametrize(("scd", "seed"), [(1, 1), (2, 3), (2, 4)])
def test_the_table_is_what_the_changes_amount_to_however_they_come(
    delta_spark: SparkSession, tmp_path: Path, scd: int, seed: int
) -> None:
    sink = DeltaSink.model_validate(
        {"delta": "t", "merge": {"keys": "id", "sequence": "v", "delete_when": "gone", "scd": scd}}
    )
    given, path = changes(seed), str(tmp_path / "t")

    def write(frame: DataFrame, number: int) -> None:
        if number == BATCHES - 1 and sink.merge is not None:  # as a crash between the deletes and the rows leaves it
            delta_deletes.remember(delta_spark, delta_merge.changes(frame, sink), sink.merge, path)
        delta_merge.write(frame, sink, path, "app", number)

    in_batches(delta_spark, given, seed, write)
    table = delta_spark.read.format("delta").load(path)
    names = ("id", "v", "name") if scd == 1 else ("id", "v", "name", "_valid_from", "_valid_to", "_current")
    rows = shown([tuple(row) for row in table.select(*names).collect()])
    if scd == 1:
        assert rows == shown(list(latest(of_rule(given)).values()))
    else:
        states = history(of_rule(given))
        assert rows == shown([(*s.row, s.valid_from, s.valid_to, s.valid_to is None) for s in states])


def test_a_state_that_came_after_a_delete_of_its_moment_stands_without_positions(delta_spark: SparkSession) -> None:
    ddl = "what STRING, headwater_deleted INT, _is_new INT"
    points = [("delete", 1, 0), ("state", 0, 0), ("new delete", 1, 1)]
    found = delta_spark.createDataFrame(points, ddl).coalesce(1).orderBy(*delta_history._latest_first([]))
    assert [row.what for row in found.collect()] == ["new delete", "state", "delete"]


def test_a_databases_table_is_what_the_changes_amount_to(delta_spark: SparkSession, derby: Any) -> None:
    types = {"createTableColumnTypes": "name VARCHAR(100), `id` INTEGER"}  # the table of last changes has no name
    told = {"keys": "id", "sequence": "v", "delete_when": "gone", "options": types}
    sink = JdbcSink.model_validate({"jdbc": derby.url, "table": "items", **told})
    given = changes(5)
    in_batches(delta_spark, given, 5, lambda frame, number: jdbc.write(frame, sink, "app", number))
    rows = derby.rows('SELECT "id", "v", "name" FROM items')
    assert rows == shown(list(latest(of_rule(given)).values()))


def test_a_table_of_an_earlier_version_goes_on(delta_spark: SparkSession, tmp_path: Path) -> None:
    """It has neither positions of the source nor remembered deletes, and its sink may add no columns."""
    path = str(tmp_path / "t")
    old = [(1, 5, "a", False, 3), (2, 5, "b", False, 4)]
    ddl = "id INT, v INT, name STRING, gone BOOLEAN, _offset BIGINT"
    delta_spark.createDataFrame(old, ddl).write.format("delta").save(path)
    sink = DeltaSink.model_validate(
        {"delta": "t", "merge": {"keys": "id", "sequence": "v", "delete_when": "gone"}, "merge_schema": False}
    )
    rows: list[Row] = [(1, 5, "earlier", False, "9", 2), (2, 5, "", True, None, 9), (3, 1, "", True, None, 10)]
    delta_merge.write(delta_spark.createDataFrame(rows, DDL), sink, path, "app", 1)
    delta_merge.write(delta_spark.createDataFrame([(3, 0, "x", False, None, 11)], DDL), sink, path, "app", 2)
    found = delta_spark.read.format("delta").load(path)
    assert [tuple(row) for row in found.select("id", "name").collect()] == [(1, "a")]
