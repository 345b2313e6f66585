from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.publishing import file_sets
from headwater.pipelines.publishing.errors import PublishRefused
from headwater.pipelines.publishing.file_sets import find_files

FILES = LocalFiles()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.json", "a.json", "day=2/c.json", "_day=3/d.json", "_temporary/e.json", ".f.json", "_SUCCESS"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    return tmp_path


def names(path: Path | str) -> list[str]:
    return [file.name for file in find_files(FILES, str(path)).contents]


def test_files_are_those_that_spark_reads_in_order(folder: Path) -> None:
    assert names(folder) == ["_day=3/d.json", "a.json", "b.json", "day=2/c.json"]
    assert names(f"{folder}/") == names(folder)
    assert names(folder / "a.json") == ["a.json"]
    assert names(folder / "*.json") == ["a.json", "b.json"]
    assert names(folder / "[ac].json") == ["a.json"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(folder: Path) -> None:
    (folder / "[ac].json").write_text("itself")
    found = find_files(FILES, str(folder / "[ac].json"))
    assert [file.name for file in found.contents] == ["[ac].json"]
    assert found.changed() is None


def test_checksums_are_of_the_whole_contents(folder: Path) -> None:
    (folder / "b.json").write_bytes(b"x" * 3_000_000)
    read = 0

    def count(size: int) -> None:
        nonlocal read
        read += size

    found = {file.name: file for file in find_files(FILES, str(folder)).checksummed(count).files}
    assert found["b.json"].sha256 == hashlib.sha256(b"x" * 3_000_000).hexdigest()
    assert found["a.json"].sha256 == hashlib.sha256(b"a.json").hexdigest()
    assert read == sum(file.size for file in found.values())


def test_what_changes_is_noticed(folder: Path) -> None:
    found = find_files(FILES, str(folder))
    assert found.changed() is None
    import os

    os.utime(folder / "a.json", (1, 1))
    assert found.changed() == "a.json was written again"
    (folder / "b.json").unlink()
    assert found.changed() == "b.json is gone"


@pytest.mark.parametrize("path", ["nowhere", "empty", "*.csv"])
def test_no_files_are_refused(path: str, folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(PublishRefused, match=r"there (is|are) no"):
        find_files(FILES, str(folder / path))


def test_too_many_files_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sets, "FILES_MAX", 3)
    with pytest.raises(PublishRefused, match="more than 3 files"):
        find_files(FILES, str(folder))
