"""Which files patterns name, and by which name."""

from pathlib import Path

import pytest

from headwater.named_files import FilePatterns, Folder, one_name_each


@pytest.mark.parametrize(
    ("pattern", "path", "is_meant"),
    [
        ("/var/log/app.log", "/var/log/app.log", True),
        ("/var/log/app.log", "/var/log/app.log.1", False),
        ("/var/log/*.log", "/var/log/app.log", True),
        ("/var/log/*.log", "/var/log/old/app.log", False),
        ("/var/**/*.log", "/var/app.log", True),
        ("/var/**/*.log", "/var/log/old/app.log", True),
        ("/var/**/*.log", "/var/log/old/app.txt", False),
        ("/var/log/[ab]?.log", "/var/log/a1.log", True),
        ("/var/log/a[1].log", "/var/log/a[1].log", True),
    ],
)
def test_a_path_is_meant_by_a_pattern_though_nothing_is_there(pattern: str, path: str, is_meant: bool) -> None:
    assert FilePatterns([pattern]).match(path) == is_meant


def test_only_regular_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "dangling.log").symlink_to(tmp_path / "nowhere")
    assert list(FilePatterns([f"{tmp_path}/*.log", f"{tmp_path}/none"]).files()) == [f"{tmp_path}/a.log"]


@pytest.mark.parametrize("link", ["a.log", "z.log"])
def test_a_file_beside_a_link_to_it_goes_by_its_own_name(tmp_path: Path, link: str) -> None:
    (tmp_path / "m.log").touch()
    (tmp_path / link).symlink_to("m.log")
    assert list(one_name_each(FilePatterns([f"{tmp_path}/*.log"]).files()).values()) == [f"{tmp_path}/m.log"]


def test_a_folder_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert Folder.read(str(tmp_path / "none")) is None
    (tmp_path / "a").touch()
    folder = Folder.read(str(tmp_path))
    assert folder is not None
    assert folder.paths == {(tmp_path / "a").stat().st_ino: str(tmp_path / "a")}
