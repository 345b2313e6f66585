"""Rows are added to a Delta table once a micro-batch, whatever its checksum files say and whoever else commits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException

from headwater.pipelines.definition import DeltaSink
from headwater.pipelines.sinks.delta import delta_rows
from headwater.pipelines.sinks.delta.delta_append import append_once

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

APP = "headwater/p/s/c"

# Workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def rows(spark: SparkSession, start: int, count: int = 10) -> DataFrame:
    return spark.range(start, start + count).selectExpr("id", "id % 2 AS half")


def add(frame: DataFrame, table: Path, batch: int, app: str = APP, **sink: Any) -> None:
    delta_rows.write(frame, DeltaSink(delta=str(table), **sink), str(table), app, batch)


def ids(spark: SparkSession, table: Path) -> list[int]:
    return sorted(row.id for row in spark.read.format("delta").load(str(table)).collect())


def commits(table: Path) -> list[list[dict[str, Any]]]:
    """The actions of each commit."""
    found = sorted((table / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in found]


@pytest.fixture
def own_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches for which Delta's own way was taken."""
    taken: list[int] = []

    def noted(frame: DataFrame, path: str, app_id: str, batch_id: int, *rest: Any, **more: Any) -> bool:
        told = append_once(frame, path, app_id, batch_id, *rest, **more)
        if not told:
            taken.append(batch_id)
        return told

    monkeypatch.setattr(delta_rows, "append_once", noted)
    return taken


def test_a_batch_is_added_once_and_the_commit_says_what_deltas_own_would(
    delta_spark: SparkSession, table: Path, own_way: list[int]
) -> None:
    for batch in (0, 1, 1, 0, 2):
        add(rows(delta_spark, batch * 10), table, batch, partition_by=["half"])
    add(rows(delta_spark, 30), table, 0, app="headwater/p/other/c", partition_by=["half"])
    assert ids(delta_spark, table) == list(range(40))
    assert own_way == [0], "only the first one has to make the table"
    made = commits(table)
    assert len(made) == 4
    marks = [action["txn"] for commit in made for action in commit if "txn" in action]
    assert [(mark["appId"], mark["version"]) for mark in marks] == [
        (APP, 0), (APP, 1), (APP, 2), ("headwater/p/other/c", 0)
    ]  # fmt: skip
    first, second = ({key: value for action in made[i] for key, value in action.items()} for i in (0, 1))
    assert second["commitInfo"]["operation"] == first["commitInfo"]["operation"] == "WRITE"
    assert second["commitInfo"]["operationParameters"]["partitionBy"] == '["half"]'
    assert second["commitInfo"]["operationMetrics"]["numOutputRows"] == "10"
    assert set(second["add"]) >= set(first["add"])
    assert second["txn"]["lastUpdated"] >= first["txn"]["lastUpdated"] > 1_700_000_000_000


@pytest.mark.parametrize("missing", ["the checksum files", "the list in them"])
def test_where_the_checksum_does_not_tell_delta_is_asked(
    delta_spark: SparkSession, table: Path, own_way: list[int], missing: str
) -> None:
    for batch in (0, 1):
        add(rows(delta_spark, batch * 10), table, batch)
    for path in list((table / "_delta_log").glob("*.crc")):  # Hadoop's own, which begin with a dot, among them
        if missing == "the checksum files" or path.name.startswith("."):
            path.unlink()
        else:
            path.write_text(
                json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "setTransactions"})
            )
    delta_spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    add(rows(delta_spark, 10), table, 1)
    assert own_way == [0, 1]
    add(rows(delta_spark, 20), table, 2)
    assert ids(delta_spark, table) == list(range(30))


def test_new_columns_flow_unless_they_are_forbidden(delta_spark: SparkSession, table: Path) -> None:
    add(rows(delta_spark, 0), table, 0)
    wider = rows(delta_spark, 10).selectExpr("*", "'n' AS new")
    with pytest.raises(PySparkException, match="schema mismatch"):
        add(wider, table, 1, merge_schema=False)
    add(wider, table, 1)
    found = delta_spark.read.format("delta").load(str(table))
    assert found.columns == ["id", "half", "new"]
    assert found.where("new = 'n'").count() == 10


def with_a_commit_meanwhile(frame: DataFrame, table: Path, app: str, batch: int) -> DataFrame:
    """Rows that are computed only after another process has committed a batch to the table, one without rows."""
    log = str(table / "_delta_log")

    def commit(batches: Iterator[Any]) -> Iterator[Any]:
        number = len(list(Path(log).glob("*.json")))
        actions = [
            {"commitInfo": {"timestamp": 1_800_000_000_000, "operation": "WRITE", "operationParameters": {}}},
            {"txn": {"appId": app, "version": batch}},
        ]
        with Path(log, f"{number:020}.json").open("x") as file:
            file.writelines(json.dumps(action) + "\n" for action in actions)
        yield from batches

    return frame.coalesce(1).mapInArrow(commit, frame.schema)


def test_a_commit_of_the_same_application_in_between_is_a_conflict(delta_spark: SparkSession, table: Path) -> None:
    add(rows(delta_spark, 0), table, 0)
    with pytest.raises(Exception, match="ConcurrentTransaction"):
        add(with_a_commit_meanwhile(rows(delta_spark, 10), table, APP, 1), table, 1)
    add(rows(delta_spark, 10), table, 1)
    assert ids(delta_spark, table) == [*range(10)], "the other's commit is the batch's"


def test_a_commit_of_another_application_in_between_is_none(delta_spark: SparkSession, table: Path) -> None:
    add(rows(delta_spark, 0), table, 0)
    add(with_a_commit_meanwhile(rows(delta_spark, 10), table, "another", 1), table, 1)
    add(rows(delta_spark, 10), table, 1)
    add(rows(delta_spark, 20), table, 2)
    assert ids(delta_spark, table) == [*range(30)]
    assert len(commits(table)) == 4
