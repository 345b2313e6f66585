"""Files that declare archives, as a command reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.cli.archive.loading import reported_archive_errors
from headwater.cli.shell.errors import EXIT_FAILED, EXIT_USER, CliError
from headwater.pipelines.archive.declared import declared_archives
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.errors import PipelineError


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(PipelineError, match=r"none\.yaml: cannot read the archives: No such file"):
        declared_archives(str(missing), {})


def test_a_secret_whose_file_is_missing_concerns_only_commands_that_need_it(tmp_path: Path) -> None:
    file = tmp_path / "archive.yaml"
    file.write_text(f'spark: {{x.password: "${{file:none}}"}}\narchive: {{root: "{tmp_path}", topics: {{t: }}}}\n')
    declared = declared_archives(str(file), {})
    assert [each.topic for each in declared.specs] == ["t"]
    with pytest.raises(PipelineError, match="the file none cannot be read"):
        declared.loaded.require_secrets()


@pytest.mark.parametrize("where", ["hdfs://namenode/lake", "s3a://b/l", "lake/", "/lake of ${all}/"])
def test_what_is_no_file_is_the_root_of_archives_that_topic_configs_enable(where: str) -> None:
    declared = declared_archives(where, {})
    assert (declared.specs, declared.declaration.root) == ((), where)


def test_a_folder_is_a_root_and_nothing_is_none(tmp_path: Path) -> None:
    assert declared_archives(str(tmp_path), {}).declaration.root == str(tmp_path)
    assert declared_archives("", {}).declaration.root is None


def test_variables_need_a_file() -> None:
    with pytest.raises(ArchiveError, match="variables are those of a file of archives, and there is none"):
        declared_archives("hdfs://nn/lake", {"a": "b"})


@pytest.mark.parametrize(("error", "code"), [(ArchiveError("so"), EXIT_USER), (ArchiveFailed("so"), EXIT_FAILED)])
def test_a_commands_failure_is_a_line_and_an_exit_code(error: Exception, code: int) -> None:
    with pytest.raises(CliError, match="so") as raised, reported_archive_errors():
        raise error
    assert raised.value.exit_code == code
