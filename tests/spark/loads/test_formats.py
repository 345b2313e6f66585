"""What lies in a target: every record once, in every format, readable by tools that know nothing of loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.orc
import pyarrow.parquet
import pytest

import headwater
from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.request import LoadStatus
from headwater.pipelines.loads.targets.manifest import Manifest
from tests.spark.loads.conftest import Dock, visible

pytestmark = pytest.mark.slow

VALUES = [*({"n": n, "carrier": "AA" if n % 3 else None} for n in range(20)), b"junk", {"carrier": "no number"}]


def records_of(path: Path) -> list[Any]:
    """The records of an Avro file, by another reader than ours."""
    with path.open("rb") as file:
        return list(fastavro.reader(file))


@pytest.mark.parametrize("form", ["parquet", "orc", "avro", "json", "delta"])
def test_decoded_rows_have_their_origin_first_and_their_fault_last(dock: Dock, tmp_path: Path, form: str) -> None:
    dock.create()
    dock.produce(VALUES, timestamp_ms=1_357_000_000_000)
    target = tmp_path / "lake" / "flights"
    outcome = dock.load(str(tmp_path / "lake" / "{topic}").replace("{topic}", "flights"), format=form)
    assert (outcome.error, outcome.outcome) == ("", LoadStatus.LOADED)
    assert outcome.manifest is not None
    assert (outcome.manifest.rows, outcome.manifest.refused) == (22, 2)
    files = visible(target)
    match form:
        case "parquet":
            rows = [row for path in files for row in pyarrow.parquet.read_table(path).to_pylist()]
        case "orc":
            rows = [row for path in files for row in pyarrow.orc.read_table(path).to_pylist()]
        case "json":
            rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        case "avro":
            rows = [row for path in files for row in records_of(path)]
        case _:
            rows = [row.asDict() for row in dock.read(str(target), form).collect()]
    names = ["_partition", "_offset", "_timestamp", "_key", "n", "carrier", "_error", "_value"]
    if form != "json":  # whose writer leaves nulls out
        assert list(rows[0]) == names
    assert sorted((row["_partition"], row["_offset"]) for row in rows) == [(p, o) for p in (0, 1) for o in range(11)]
    good = {row["n"]: row for row in rows if row.get("_error") is None}
    assert sorted(good) == list(range(20))
    assert good[4].get("carrier") == "AA"
    assert good[3].get("carrier") is None
    assert good[3].get("_value") is None
    refused = sorted((row for row in rows if row.get("_error")), key=lambda row: row["_partition"])
    assert ["not JSON" in row["_error"] for row in refused] == [True, False]
    assert [row.get("n") for row in refused] == [None, None]
    if form != "json":
        assert bytes(refused[0]["_value"]) == b"junk"
        assert bytes(good[7]["_key"]) == b"7"
    if form != "delta":
        assert (target / "_SUCCESS").exists()
        assert sorted(str(path.relative_to(target)) for path in files) == sorted(f.path for f in outcome.manifest.files)
    [manifest] = (target / "_headwater" / "manifests").iterdir()
    assert Manifest.decode(manifest.read_bytes(), str(manifest)) == outcome.manifest


def test_raw_rows_have_the_columns_of_sparks_kafka_source(dock: Dock, tmp_path: Path) -> None:
    dock.create()
    dock.produce([b"one", b"two"])
    assert dock.load(f"{tmp_path}/raw", json_values=False, headers=True).error == ""
    rows = dock.read(f"{tmp_path}/raw").orderBy("partition").collect()
    assert rows[0].__fields__ == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"
    ]  # fmt: skip
    assert [bytes(row.value) for row in rows] == [b"one", b"two"]


@pytest.mark.parametrize("form", ["parquet", "avro", "delta"])
def test_partition_columns_are_folders_in_the_zone_that_is_asked_for(dock: Dock, tmp_path: Path, form: str) -> None:
    dock.create()
    dock.produce([{"n": n, "carrier": "AA"} for n in range(10)], timestamp_ms=1_357_016_400_000)  # 05:00 UTC
    dock.produce([{"n": n, "carrier": None} for n in range(10)], timestamp_ms=1_357_009_200_000)  # 03:00 UTC
    target = tmp_path / "lake"
    by = ("date(_timestamp),hour(_timestamp)", "carrier")
    outcome = dock.load(str(target), format=form, partition_by=by, timezone="America/New_York")
    assert outcome.error == ""
    folders = {str(path.parent.relative_to(target)) for path in visible(target)}
    null = "__HIVE_DEFAULT_PARTITION__"
    assert folders == {"dt=2013-01-01/hour=00/carrier=AA", f"dt=2012-12-31/hour=22/carrier={null}"}
    if form != "avro":
        rows = dock.read(str(target), form)
        assert rows.where("dt = '2012-12-31'").count() == 10
        assert rows.count() == 20
    assert dock.load(str(target), format=form, partition_by=by, timezone="America/New_York").error == ""
    again = dock.load(str(target), format=form, partition_by=by)
    assert again.is_user_error
    assert "from_utc_timestamp(" in again.error
    assert "give the same --partition-by and --timezone" in again.error


def test_a_partition_column_takes_no_column_of_the_rows(dock: Dock, tmp_path: Path) -> None:
    (tmp_path / "flight.json").write_text('{"type": "object", "properties": {"Hour": {"type": "integer"}}}')
    dock.create()
    dock.produce([{"Hour": 23}], timestamp_ms=1_357_016_400_000)
    refused = dock.load(f"{tmp_path}/lake", partition_by=("hour(_timestamp)",))
    assert "the rows have a column Hour already; give the partition column another name" in refused.error
    assert dock.load(f"{tmp_path}/lake", partition_by=("hour(_timestamp) AS h", "carrier_is")).is_user_error
    assert dock.load(f"{tmp_path}/lake", partition_by=("hour(_timestamp) AS h",)).error == ""
    [row] = dock.read(f"{tmp_path}/lake").collect()
    assert (row.Hour, row.h) == (23, 5)


def test_values_with_signs_and_text_that_is_no_time_have_folders(dock: Dock, tmp_path: Path) -> None:
    dock.create()
    values = ["A/B", "50%", "x=y", "2013-13-45", "2013-01-02"]
    dock.produce([{"n": 1, "carrier": value} for value in values])
    for form in ("parquet", "avro"):
        target = tmp_path / form
        outcome = dock.load(f"file://{target}", format=form, partition_by=("carrier", "date(carrier)"))
        assert outcome.error == ""
        null = "dt=__HIVE_DEFAULT_PARTITION__"
        assert {str(path.parent.relative_to(target)) for path in visible(target)} == {
            f"carrier=A%2FB/{null}",
            f"carrier=50%25/{null}",
            f"carrier=x%3Dy/{null}",
            f"carrier=2013-13-45/{null}",
            "carrier=2013-01-02/dt=2013-01-02",
        }
    assert sorted(row.carrier for row in dock.read(f"{tmp_path}/parquet").collect()) == sorted(values)


def test_a_large_partition_is_split_and_small_ones_share_a_file(
    dock: Dock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.pipelines.loads.rows.TASK_ROWS_MIN", 100)
    dock.create(8)
    dock.produce([{"n": n} for n in range(400)], partition=0)
    for partition in range(1, 8):
        dock.produce([{"n": n} for n in range(5)], partition=partition)
    outcome = dock.load(f"{tmp_path}/lake")
    assert outcome.manifest is not None
    assert outcome.manifest.rows == 435
    assert 2 <= len(outcome.manifest.files) <= 3


def test_a_notebook_loads_in_its_own_session(dock: Dock, tmp_path: Path) -> None:
    dock.create()
    dock.produce(VALUES)
    [outcome] = headwater.load(
        dock.spark,
        dock.topic,
        to=f"{tmp_path}/lake",
        value="json",
        schema=str(tmp_path / "flight.json"),
        bootstrap_servers=dock.servers,
    )
    assert outcome.outcome is LoadStatus.LOADED
    assert dock.read(f"{tmp_path}/lake", "delta").count() == 22
    assert dock.spark.range(1).count() == 1
    with pytest.raises(LoadError, match=r"--until is offset 99 of .*, which ends at 11"):
        headwater.load(dock.spark, dock.topic, to=f"{tmp_path}/lake", until="99", bootstrap_servers=dock.servers)
