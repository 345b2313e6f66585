"""Results in each format: what is printed for rows, for none, and when a result breaks off."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import time
from collections.abc import Sequence

import pytest
from pyspark.sql import types

from headwater.cli.sql.execution import require_names
from headwater.cli.sql.outputs import TABLE_ROWS_MAX, followed_output_of, output_of
from headwater.cli.sql.values import equal_names, plain, row_values
from headwater.pipelines.sql.statement_errors import StatementError

NAMES = ["id", "name"]
ROWS = [(1, "é"), (2, None)]


def printed(capsys: pytest.CaptureFixture[str], name: str, *chunks: Sequence[tuple[object, ...]]) -> str:
    output = output_of(name)
    output.begin(NAMES)
    for chunk in chunks:
        output.rows(chunk)
    output.end()
    return capsys.readouterr().out


@pytest.mark.parametrize("chunks", [[], [ROWS], [[ROWS[0]], [ROWS[1]]]])
def test_json_is_one_array(capsys: pytest.CaptureFixture[str], chunks: list[list[tuple[object, ...]]]) -> None:
    text = printed(capsys, "json", *chunks)
    assert json.loads(text) == [dict(zip(NAMES, row, strict=True)) for chunk in chunks for row in chunk]
    assert text.endswith("]\n")


def test_jsonl_is_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert [json.loads(line) for line in printed(capsys, "jsonl", ROWS).splitlines()] == [
        {"id": 1, "name": "é"},
        {"id": 2, "name": None},
    ]


def test_csv_has_a_header_and_quotes_what_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[tuple[object, ...]] = [(1, 'a,"b"'), (2, [b"\xff", {"k": 1}])]
    found = list(csv.reader(io.StringIO(printed(capsys, "csv", rows))))
    assert found == [NAMES, ["1", 'a,"b"'], ["2", '["X\'FF\'", {"k": 1}]']]


def test_a_table_ends_at_its_limit_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    output = output_of("table")
    assert output.rows_max == TABLE_ROWS_MAX
    output.begin(NAMES)
    output.rows([(n, "x") for n in range(TABLE_ROWS_MAX + 1)])
    output.end()
    shown = capsys.readouterr()
    assert f"{TABLE_ROWS_MAX - 1:,}" in shown.out
    assert f"{TABLE_ROWS_MAX:,} x" not in " ".join(shown.out.split())
    assert "only the first 1,000 rows are shown" in shown.err


def test_a_followed_table_prints_rows_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    output = followed_output_of("table")
    output.begin(NAMES)
    output.rows([(17, "x")])
    assert "17" in capsys.readouterr().out


def test_csv_quotes_a_carriage_return_and_ends_lines_with_a_line_feed(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "csv", [(1, "a\rb"), (2, "c\nd")]) == 'id,name\n1,"a\rb"\n2,"c\nd"\n'


AT, N, TEXT = types.TimestampType(), types.IntegerType(), types.StringType()
SCHEMA = (
    types.StructType()
    .add("at", AT)
    .add("local", types.TimestampNTZType())
    .add("several", types.ArrayType(AT))
    .add("inner", types.StructType().add("at", AT).add("n", N))
    .add("by", types.MapType(TEXT, AT))
    .add("n", N)
)


def test_a_timestamp_is_the_same_in_every_time_zone_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC)  # in Berlin, 02:30 comes twice
    local = dt.datetime.fromisoformat("2026-01-01")
    try:
        for zone in ("UTC", "Europe/Berlin", "America/New_York"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            for at, expected in ((moment, "T00:30:00Z"), (moment + dt.timedelta(hours=1), "T01:30:00Z")):
                given = dt.datetime.fromtimestamp(at.timestamp())  # noqa: DTZ006 - as PySpark gives it
                row = (given, local, [given, None], types.Row(at=given, n=1), {"k": given}, None)
                shown = [plain(value) for value in row_values(SCHEMA)(row)]
                text = "2026-10-25" + expected
                assert shown == [text, "2026-01-01T00:00:00", [text, None], {"at": text, "n": 1}, {"k": text}, None]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_equal_names_are_told_where_one_would_hide_the_other() -> None:
    twice = types.StructType([types.StructField(name, types.IntegerType()) for name in ("a", "b", "a")])
    assert equal_names(twice, keyed=True) == ["a"]
    assert equal_names(twice, keyed=False) == []
    nested = types.StructType([types.StructField("s", types.ArrayType(twice))])
    assert equal_names(nested, keyed=False) == ["a"]
    with pytest.raises(StatementError, match="several columns or fields are named a: rename them with AS"):
        require_names(twice, keyed=output_of("jsonl").keyed)
    require_names(twice, keyed=output_of("csv").keyed)
