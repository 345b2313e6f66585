"""Results in each format: what is printed for rows, for none, and when a result breaks off."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

import pytest

from headwater.cli.sql.outputs import TABLE_ROWS_MAX, followed_output_of, output_of

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
