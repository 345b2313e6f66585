"""Options of `headwater sql` that exclude or need each other; scripts that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater.cli.shell.errors import CliError
from headwater.cli.sql.follow import parse_from
from headwater.cli.sql.options import SqlOptions
from headwater.cli.sql.pager import show_table
from headwater.cli.sql.script import SCRIPT_BYTES_MAX, Script, read_script


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"query": "a", "script": "b"}, "either -e or -f"),
        ({"output": "parquet"}, "--to FILE go together"),
        ({"to": "f"}, "--to FILE go together"),
        ({"follow": True}, "--follow needs the statement"),
        ({"follow": True, "query": "a", "output": "json"}, "use -o jsonl"),
        ({"follow": True, "query": "a", "output": "parquet", "to": "f"}, "use -o jsonl"),
        ({"query": "a", "start": "latest"}, "are for --follow"),
        ({"query": "a", "rows_held": 5}, "are for --follow"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(CliError, match=line):
        SqlOptions(**given).check()


def test_a_script_that_cannot_be_run_is_one_line(tmp_path: Path) -> None:
    for name, content, line in (
        ("latin", b"SELECT '\xe9'", "is not UTF-8 text"),
        ("empty", b"-- nothing\n;", "has no statement"),
        ("large", b" " * (SCRIPT_BYTES_MAX + 1), "is larger than 16 MiB"),
        ("many", b"SELECT 1;" * 10_001, "more than 10,000 statements"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CliError, match=line):
            read_script(str(tmp_path / name))
    with pytest.raises(CliError, match="No such file"):
        read_script(str(tmp_path / "none"))
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfSELECT 1")
    assert [each.text for each in read_script(str(tmp_path / "bom")).statements] == ["SELECT 1"]
    assert Script("SELECT 1; SELECT 2").file == ""


@pytest.mark.parametrize(
    ("text", "kind", "number"),
    [
        ("earliest", "start", 0),
        ("start", "start", 0),
        ("47", "offset", 47),
        ("@1700000000000", "timestamp", 17 * 10**11),
    ],
)
def test_a_start_has_the_words_of_consume_and_of_kafka(text: str, kind: str, number: int) -> None:
    assert (parse_from(text).kind.value, parse_from(text).number) == (kind, number)


def test_a_start_that_is_none_is_refused() -> None:
    with pytest.raises(CliError, match="--from: 'soon' is not a position"):
        parse_from("soon")


def test_a_pipe_is_never_paged(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["n"], [(n,) for n in range(500)])
    assert "499" in capsys.readouterr().out
