"""Merges of random changes in random batches beside the rule in plain Python (`change_rule`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.pipelines.definition import DeltaSink, FilesSink, JdbcSink
from headwater.pipelines.sinks import delta_deletes, delta_history, delta_merge, delta_rows, files, jdbc
from headwater.pipelines.sinks.change_rule import KeyChange, history, latest
from headwater.pipelines.sinks.kinds import kind_of_sink

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


BARE_DDL = "id INT, v INT, name STRING, _op STRING, _topic STRING, _offset BIGINT, _timestamp STRING, _key STRING"


def bare(spark: SparkSession, *given: tuple[int, int, str, int]) -> DataFrame:
    """Rows of id, v, name and offset, with what else a record brings."""
    rows = [(id_, v, name, "u", "t", offset, f"at {offset}", "k") for id_, v, name, offset in given]
    return spark.createDataFrame(rows, BARE_DDL)


@pytest.mark.parametrize(
    ("merge", "stored", "left"),
    [
        (None, ["id", "v", "name", "half"], ["_topic", "_offset", "_timestamp", "_op"]),
        ({"keys": "id"}, ["id", "v", "name", "half"], ["_topic", "_offset", "_timestamp"]),
        ({"keys": "id", "sequence": "v"}, ["id", "v", "name", "_topic", "_offset", "half"], ["_timestamp"]),
        (
            {"keys": "id", "sequence": "v", "scd": 2},
            ["id", "v", "name", "_topic", "_offset", "half", "_valid_from", "_valid_to", "_current"],
            ["_timestamp"],
        ),
    ],
)
def test_underscore_columns_are_left_out_and_changes_keep_their_order(
    delta_spark: SparkSession, tmp_path: Path, merge: dict[str, Any] | None, stored: list[str], left: list[str]
) -> None:
    told = {"delta": "t", "merge": merge, "partition_by": ["_offset % 2 AS half"]}
    omit, keep = (DeltaSink.model_validate({**told, "underscore_columns": each}) for each in ("omit", "keep"))
    first = bare(delta_spark, (1, 5, "b", 8), (1, 5, "a", 6))
    second = bare(delta_spark, (1, 5, "late", 4), (2, 1, "d", 11))

    def write(frame: DataFrame, sink: DeltaSink, path: str, number: int) -> None:
        if sink.merge is None:
            delta_rows.write(frame, sink, path, "app", number)
        else:
            delta_merge.write(frame, sink, path, "app", number)

    def table(path: str) -> DataFrame:
        return delta_spark.read.format("delta").load(path)

    names = {"a": ["a", "b", "d", "late"], "keys": ["d", "late"], "sequence": ["b", "d"]}
    expected = names["a"] if merge is None else names["sequence" if "sequence" in merge else "keys"]
    new, old = str(tmp_path / "new"), str(tmp_path / "old")
    for number, frame in enumerate([first, second]):
        write(frame, omit, new, number)
        write(frame, omit if number else keep, old, number)
    assert table(new).columns == stored
    assert [f.name for f in kind_of_sink(omit).stored(omit, first) or ()] == stored
    shown = [name for name in kind_of_sink(omit).shown(omit, first, {}).columns if name != "headwater_deleted"]
    assert shown == [name for name in stored if name not in ("_valid_from", "_valid_to", "_current")]
    assert sorted(row["name"] for row in table(new).collect()) == expected
    # A table that had the columns keeps them: they are null in what is written from then on.
    assert set(table(old).columns) == {*stored, *left}
    rows = {row["name"]: row for row in table(old).collect()}
    assert sorted(rows) == expected
    assert [rows["d"][name] for name in left] == [None] * len(left)
    if "b" in rows:
        assert rows["b"]["_timestamp"] == "at 8"
    if "late" in rows:
        assert [rows["late"][name] for name in left] == [None] * len(left)


def test_underscore_columns_of_files_and_databases(delta_spark: SparkSession) -> None:
    rows = bare(delta_spark, (1, 5, "b", 8), (1, 5, "a", 6))
    told = {"files": "f", "format": "csv", "partition_by": ["upper(_op) AS _Big"]}
    keep, omit = (FilesSink.model_validate({**told, "underscore_columns": each}) for each in ("keep", "omit"))
    assert files.file_rows(rows, keep).columns == ["id", "v", "name", "_op", "_Big"]
    assert files.file_rows(rows, omit).columns == ["id", "v", "name", "_Big"]
    sink = JdbcSink.model_validate({
        "jdbc": "jdbc:x://db", "table": "t", "keys": "id", "sequence": "v", "underscore_columns": "omit"
    })  # fmt: skip
    found = jdbc.table_rows(rows, sink)
    assert found.columns == ["id", "v", "name", "headwater_deleted"]
    assert [row["name"] for row in found.collect()] == ["b"]
    only = FilesSink.model_validate({"files": "f", "format": "csv", "underscore_columns": "omit"})
    with pytest.raises(ValueError, match="leaves out every column"):
        files.file_rows(rows.select("_op"), only)
