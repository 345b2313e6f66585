"""`headwater sql --archive`: the archives that a session knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.cli.shell.errors import CliError
from headwater.cli.sql.known_relations import archives_of
from headwater.cli.sql.options import SqlOptions
from headwater.pipelines.errors import PipelineError
from headwater.pipelines.sql.relations import Known


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "archive.yaml"
    path.write_text(text)
    return str(path)


def test_without_the_option_there_are_none() -> None:
    found = archives_of(SqlOptions())
    assert (found.specs, found.known(Known()).lake) == ((), {})


def test_an_archives_table_is_in_lake_and_no_table_of_a_plain_name(tmp_path: Path) -> None:
    file = written(tmp_path, "archive: {root: lake, topics: {flights: , a.b: , old: {table: /o}}}")
    known = archives_of(SqlOptions(archive=file)).known(Known(tables={"old": "/other"}))
    assert known.tables == {"old": "/other"}
    assert known.lake == {
        "flights": f"{tmp_path}/lake/flights", "a_b": f"{tmp_path}/lake/a.b", "o": "/o", "old": "/other",
    }  # fmt: skip


def test_variables_are_those_of_the_pipeline_if_there_is_one(tmp_path: Path) -> None:
    file = written(tmp_path, "variables: {root: /a}\narchive: {root: '${root}', topics: {t: }}")
    given = ("root=/b",)
    assert archives_of(SqlOptions(archive=file, assignments=given)).specs[0].table == "/b/t"
    assert archives_of(SqlOptions(archive=file, assignments=given, file="p.yaml")).specs[0].table == "/a/t"


def test_a_file_that_declares_no_archive_that_can_be_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot read the archives"):
        archives_of(SqlOptions(archive=str(tmp_path / "none.yaml")))
    with pytest.raises(CliError, match="--archive: the archive of t has no table"):
        archives_of(SqlOptions(archive=written(tmp_path, "archive: {topics: {t: }}")))
