"""Merges of random changes in random batches beside the rule in plain Python (`change_rule`)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pytest
from pyspark.errors import AnalysisException

from headwater.pipelines.definition import DeltaSink, FilesSink, JdbcSink
from headwater.pipelines.sinks import files, jdbc
from headwater.pipelines.sinks.change_rule import KeyChange, history, latest
from headwater.pipelines.sinks.delta import (
    delta_collapsed,
    delta_deletes,
    delta_history,
    delta_merge,
    delta_rows,
    delta_runs,
)
from headwater.pipelines.sinks.delta.delta_kind import DeltaKind
from headwater.pipelines.sinks.kinds import kind_of_sink
from headwater.pipelines.spark.session_settings import settings_for_a_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

# A batch has many changes of a key: keys are independent, so that one table tests many histories.
KEYS, MOMENTS, CHANGES, BATCHES = 40, 5, 320, 3
# Its changes tell merges apart that remember no deletes, let an earlier delete replace a later one, ignore the
# order within a moment, or overwrite a later row: those of most seeds do not.
SEED = 63
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


@pytest.mark.parametrize("scd", [1, 2])
def test_the_table_is_what_the_changes_amount_to_however_they_come(
    delta_spark: SparkSession, tmp_path: Path, scd: int
) -> None:
    sink = DeltaSink.model_validate(
        {"delta": "t", "merge": {"keys": "id", "sequence": "v", "delete_when": "gone", "scd": scd}}
    )
    given, path, numbers = changes(SEED), str(tmp_path / "t"), set[int]()

    def write(frame: DataFrame, number: int) -> None:
        is_last = number == BATCHES - 1 and number not in numbers
        numbers.add(number)
        if is_last and sink.merge is not None:  # as a crash between the deletes and the rows leaves it
            delta_deletes.remember(delta_spark, delta_merge.changes(frame, sink), sink.merge, path)
        delta_merge.write(frame, sink, path, "app", number)

    in_batches(delta_spark, given, SEED, write)
    table = delta_spark.read.format("delta").load(path)
    names = ("id", "v", "name") if scd == 1 else ("id", "v", "name", "_valid_from", "_valid_to", "_current")
    rows = shown([tuple(row) for row in table.select(*names).collect()])
    if scd == 1:
        assert rows == shown(list(latest(of_rule(given)).values()))
    else:
        states = history(of_rule(given))
        assert rows == shown([(*s.row, s.valid_from, s.valid_to, s.valid_to is None) for s in states])


TRACKED_KEYS, TRACKED_MOMENTS, TRACKED_CHANGES = 40, 9, 480
GRADES = ("a", "a", None, "b")
TRACKED = {"keys": "ID", "sequence": "v", "delete_when": "gone", "scd": 2}


def grade(n: int) -> str | None:
    return GRADES[n * 7 % 11 % len(GRADES)]


@pytest.mark.parametrize(
    ("seed", "batches_count", "has_positions", "more"),
    [
        (6, 3, True, {"columns": ["Name", "grade"], "track_history": ["GRADE"]}),
        (7, 2, False, {"except": ["gone", "_timestamp"], "track_history": {"except": ["name"]}}),
    ],
)
def test_changes_of_untracked_columns_start_no_state_however_they_come(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    seed: int, batches_count: int, has_positions: bool, more: dict[str, Any],
) -> None:  # fmt: skip
    sink, path = DeltaSink.model_validate({"delta": "t", "merge": {**TRACKED, **more}}), str(tmp_path / "t")
    dice = random.Random(seed)
    places = dice.sample(range(TRACKED_CHANGES), TRACKED_CHANGES)
    given = [
        (dice.randrange(TRACKED_KEYS), dice.randrange(TRACKED_MOMENTS), f"n{n}", dice.random() < 0.2, grade(n),
         f"{place:020}" if dice.random() < 0.7 else None, n)
        for n, place in enumerate(places)
    ]  # fmt: skip
    cuts = [0, *sorted(dice.sample(range(1, TRACKED_CHANGES), batches_count - 1)), TRACKED_CHANGES]
    batches = [given[start:end] for start, end in itertools.pairwise(cuts)]
    if not has_positions:  # only batches have an order of arrival
        batches = [list({row[:2]: row for row in batch}.values()) for batch in batches]
    whole = delta_runs._merge

    def crash(*_: Any) -> None:
        raise InterruptedError

    for number, batch in enumerate(batches):
        frame = delta_spark.createDataFrame(
            batch, "id INT, v INT, name STRING, gone BOOLEAN, grade STRING, _source_position STRING, _offset BIGINT"
        ).selectExpr("*", "current_timestamp() AS _timestamp")
        frame = frame if has_positions else frame.drop("_source_position", "_offset")
        if number == 1 < batches_count - 1:  # the last one goes on after the crash
            monkeypatch.setattr(delta_runs, "_merge", crash)
            with pytest.raises(InterruptedError):
                delta_merge.write(frame, sink, path, "app", number)
            monkeypatch.setattr(delta_runs, "_merge", whole)
        delta_merge.write(frame, sink, path, "app", number)
    delta_merge.write(frame, sink, path, "app", number)
    table = delta_spark.read.format("delta").load(path)
    assert not {"gone", "_timestamp"} & set(table.columns)
    names = ("id", "v", "name", "grade", "_valid_from", "_valid_to", "_current")
    changes = [
        KeyChange(key, v, (place or "", n) if has_positions else (), None if gone else (key, v, name, grade))
        for batch in batches for key, v, name, gone, grade, place, n in batch
    ]  # fmt: skip
    states = history(changes, tracked=lambda row: row[3])
    assert len(states) < len(history(changes))
    expected = [(*s.row, s.valid_from, s.valid_to, s.valid_to is None) for s in states]
    assert shown([tuple(row) for row in table.select(*names).collect()]) == shown(expected)


def test_a_late_change_splits_a_state_and_states_keep_their_start_without_their_memory(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    told = {**TRACKED, "track_history": {"except": "seen"}}
    sink, path, numbers = DeltaSink.model_validate({"delta": "t", "merge": told}), str(tmp_path / "t"), iter(range(9))
    Rows: TypeAlias = list[tuple[Any, ...]]

    def after(ddl: str, *rows: tuple[Any, ...]) -> tuple[Rows, Rows]:
        """The states of both keys."""
        frame = delta_spark.createDataFrame(list(rows), f"id INT, v INT, name STRING, gone BOOLEAN, seen INT{ddl}")
        delta_merge.write(frame, sink, path, "app", next(numbers))
        names = ("name", "seen", *(["more"] if ddl else []), "_valid_from", "_valid_to")
        found = delta_spark.read.format("delta").load(path).orderBy("v").select("id", *names).collect()
        first, second = ([tuple(row)[1:] for row in found if row.id == key] for key in (1, 2))
        return first, second

    one, two, three = ([(key, v, "x", False, v) for key in (1, 2)] for v in (10, 20, 30))
    assert after("", *one, *three, *two) == ([("x", 30, 10, None)],) * 2
    # A delete between equal rows ends a state; a column that the rows did not have was null.
    more = ", more INT"
    assert after(
        more, (1, 25, "y", False, 25, None),
        (2, 15, "", True, 15, 1), (2, 30, "x", False, 31, None), (2, 40, "x", False, 40, None),
    ) == (
        [("x", 20, None, 10, 25), ("y", 25, None, 25, 30), ("x", 30, None, 30, None)],
        [("x", 10, None, 10, 15), ("x", 40, None, 20, None)],
    )  # fmt: skip
    assert after(more, (2, 35, "x", False, 35, 7), (2, 50, "x", False, 50, None))[1] == [
        ("x", 10, None, 10, 15), ("x", 31, None, 20, 35), ("x", 35, 7, 35, 40), ("x", 50, None, 40, None)
    ]  # fmt: skip
    where = f"{path}/{delta_collapsed.FOLDER}"
    with settings_for_a_job(delta_spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
        delta_spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    kept = delta_spark.read.format("delta").load(where).where("id = 2").orderBy("v")
    assert [row.v for row in kept.collect()] == [10, 20, 30, 40]
    delta_spark.sql(f"DELETE FROM delta.`{where}`")
    # A column that only the table has, and that Spark cannot compare, is not tracked.
    delta_spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN tags MAP<STRING, STRING>")
    assert after(more, (2, 60, "x", False, 60, None))[1][-1] == ("x", 60, None, 40, None)
    assert delta_spark.read.format("delta").load(where).count() == 1


def test_a_tracked_history_heeds_deletes_from_the_table_and_batches_that_it_has(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {**TRACKED, "track_history": "name"}
    sink, path, numbers = DeltaSink.model_validate({"delta": "t", "merge": told}), str(tmp_path / "t"), iter(range(9))
    where = f"{path}/{delta_collapsed.FOLDER}"
    whole = delta_collapsed.remember

    def write(number: int, *rows: tuple[int, int, str, bool, int]) -> None:
        ddl = "id INT, v INT, name STRING, gone BOOLEAN, _offset BIGINT"
        delta_merge.write(delta_spark.createDataFrame(list(rows), ddl), sink, path, "app", number)

    def after(*rows: tuple[int, int, str, bool, int]) -> dict[int, list[tuple[Any, ...]]]:
        """The states of each key."""
        write(next(numbers), *rows)
        states: dict[int, list[tuple[Any, ...]]] = {5: [], 6: []}
        for row in delta_spark.read.format("delta").load(path).orderBy("v").collect():
            states[row.id].append((row.name, row.v, row._valid_from, row._valid_to))
        return states

    def remember_and_delete(*given: Any) -> None:
        whole(*given)
        delta_spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 5")

    # Rows that a user deletes do not come back, whether before a batch or between its reading and its MERGE: key 5.
    # A delete that is older than a state's first change does not take the start of a state without its memory: key 6.
    assert after((5, 10, "x", False, 1), (5, 20, "x", False, 2), (6, 50, "", True, 5)) == {
        5: [("x", 20, 10, None)], 6: []
    }  # fmt: skip
    delta_spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 5")
    assert after((5, 30, "y", False, 3), (6, 50, "z", False, 6), (6, 60, "z", False, 7)) == {
        5: [("y", 30, 30, None)], 6: [("z", 60, 50, None)]
    }  # fmt: skip
    delta_spark.sql(f"DELETE FROM delta.`{where}`")
    monkeypatch.setattr(delta_collapsed, "remember", remember_and_delete)
    assert after((5, 40, "y", False, 4), (6, 70, "z", False, 8)) == {
        5: [("y", 40, 40, None)], 6: [("z", 70, 50, None)]
    }  # fmt: skip
    monkeypatch.setattr(delta_collapsed, "remember", whole)
    assert after((6, 50, "", True, 9))[6] == [("z", 70, 60, None)]
    # A batch that the table has leaves the memory as it is, even if its stage now makes other rows of it.
    before = [log(f"{path}/{folder}") for folder in (delta_collapsed.FOLDER, delta_deletes.FOLDER)]
    write(1, (5, 65, "z", False, 3), (5, 66, "", True, 4))
    assert [log(f"{path}/{folder}") for folder in (delta_collapsed.FOLDER, delta_deletes.FOLDER)] == before


def log(table: str) -> list[str]:
    return sorted(file.name for file in Path(table, "_delta_log").glob("*.json"))


def test_preview_and_readers_get_the_columns_that_the_table_stores(delta_spark: SparkSession) -> None:
    ddl = "id INT, v INT, name STRING, _op STRING, tags MAP<STRING, STRING>, _offset BIGINT, _timestamp TIMESTAMP"
    rows, kind, nothing = delta_spark.createDataFrame([], ddl), DeltaKind(), cast("Any", None)

    def sink(**more: Any) -> DeltaSink:
        merge = {"keys": "id", "sequence": "v", "delete_when": "_op = 'd'", **more}
        return DeltaSink.model_validate({"delta": "t", "partition_by": ["v % 2 AS odd"], "merge": merge})

    of_names = sink(columns="NAME")
    kind.check(nothing, of_names, rows, {})
    assert kind.shown(of_names, rows, {}).columns == ["id", "v", "name", "_offset", "headwater_deleted", "odd"]
    assert kind.stored(of_names, rows).names == ["id", "v", "name", "_offset", "odd"]
    history_of = sink(scd=2, track_history={"except": "name"}, **{"except": ["_op", "TAGS", "_timestamp"]})
    kind.check(nothing, history_of, rows, {})
    assert kind.stored(history_of, rows).names == [
        "id", "v", "name", "_offset", "odd", "_valid_from", "_valid_to", "_current"
    ]  # fmt: skip
    with pytest.raises(ValueError, match="columns names nmae, which is none of the columns that the table could store"):
        kind.check(nothing, sink(columns="nmae"), rows, {})
    lost = sink(scd=2, track_history={"except": "seen"}, **{"except": ["tags", "nmae"]})  # columns come and go
    kind.check(nothing, lost, rows, {})
    with pytest.raises(AnalysisException, match="_op"):
        kind.check(nothing, sink().model_copy(update={"partition_by": ("_op",)}), rows, {})
    with pytest.raises(AnalysisException, match="_op"):
        kind.check(nothing, sink().model_copy(update={"partition_by": (), "cluster_by": ("_op",)}), rows, {})
    with pytest.raises(AnalysisException, match="MAP"):  # Spark compares no maps
        kind.check(nothing, sink(scd=2, track_history={"except": "name"}), rows, {})


def test_a_batch_that_is_repeated_with_other_deletes_remembers_them(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t")

    def write(number: int, delete_when: str, *given: Row) -> None:
        merge = {"keys": "id", "sequence": "v", "delete_when": delete_when}
        sink = DeltaSink.model_validate({"delta": "t", "merge": merge})
        delta_merge.write(delta_spark.createDataFrame(list(given), DDL), sink, path, "app", number)

    def crash(*_: Any) -> None:
        raise InterruptedError

    batch: tuple[Row, ...] = ((1, 9, "a", True, None, 1), (2, 9, "x", False, None, 2))
    with monkeypatch.context() as patched, pytest.raises(InterruptedError):
        patched.setattr(delta_merge, "_latest", crash)
        write(0, "gone", *batch)
    write(0, "gone OR name = 'x'", *batch)
    write(1, "gone", (1, 7, "late", False, None, 3), (2, 7, "late", False, None, 4))
    assert delta_spark.read.format("delta").load(path).count() == 0


def test_a_state_that_came_after_a_delete_of_its_moment_stands_without_positions(delta_spark: SparkSession) -> None:
    ddl = "what STRING, headwater_deleted INT, _is_new INT"
    points = [("delete", 1, 0), ("state", 0, 0), ("new delete", 1, 1)]
    found = delta_spark.createDataFrame(points, ddl).coalesce(1).orderBy(*delta_history.latest_first([]))
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

    assert [f.name for f in kind_of_sink(omit).stored(omit, first) or ()] == stored
    shown = [name for name in kind_of_sink(omit).shown(omit, first, {}).columns if name != "headwater_deleted"]
    assert shown == [name for name in stored if name not in ("_valid_from", "_valid_to", "_current")]
    if merge == {"keys": "id", "sequence": "v"}:
        return  # written as that of a key and of a history
    new, old = str(tmp_path / "new"), str(tmp_path / "old")
    write(first, omit, new, 0)
    write(first, keep, old, 0)
    write(second, omit, old, 1)
    assert table(new).columns == stored
    assert sorted(row["name"] for row in table(new).collect()) == (["a", "b"] if merge is None else ["b"])
    expected = ["a", "b", "d", "late"] if merge is None else ["b", "d"] if "sequence" in merge else ["d", "late"]
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
    # A record's place may be the key.
    placed = JdbcSink.model_validate({"jdbc": "jdbc:x://db", "table": "t", "keys": ["id", "_offset"]})
    assert "_offset" in jdbc.table_rows(rows, placed).columns
    only = FilesSink.model_validate({"files": "f", "format": "csv", "underscore_columns": "omit"})
    with pytest.raises(ValueError, match="leaves out every column"):
        files.file_rows(rows.select("_op"), only)
