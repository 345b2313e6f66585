"""Which files patterns name, and by which name."""

from pathlib import Path

import pytest

from headwater.shipping.file_patterns import FilePatterns, Folder, one_name_each


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


def names(pattern: str, *excluded: str) -> list[str]:
    return [Path(path).name for path in FilePatterns([pattern], excluded).files()]


def test_folders_that_link_to_each_other_have_an_end(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.log").touch()
        for other in "abc":
            (tmp_path / name / f"to-{other}").symlink_to(tmp_path / other)
    assert names(f"{tmp_path}/**/*.log") == ["a.log", "b.log", "c.log"]
    assert len(names(f"{tmp_path}/*/to-a/*.log")) == 3, "a link that is named is followed"


def test_a_name_with_brackets_that_is_there_is_that_name(tmp_path: Path) -> None:
    (tmp_path / "app[1].log").touch()
    (tmp_path / "app1.log").touch()
    assert names(f"{tmp_path}/app[1].log") == ["app[1].log", "app1.log"]


def test_what_is_excluded_is_left_out_by_name_or_path(tmp_path: Path) -> None:
    for name in ("app.log", "app.log.gz", "debug.log"):
        (tmp_path / name).touch()
    assert names(f"{tmp_path}/*.log*", "*.gz", f"{tmp_path}/d*") == ["app.log"]
    assert not FilePatterns([f"{tmp_path}/*"], ["*.gz"]).match(f"{tmp_path}/a.gz")


def test_what_names_no_file_is_told_and_why(tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    patterns = FilePatterns([f"{tmp_path}/a.log", f"{tmp_path}/none", f"{tmp_path}/*.txt", str(tmp_path)])
    assert list(patterns.mistakes().values()) == [
        f"{tmp_path}/none cannot be read: No such file or directory",
        f"no file matches {tmp_path}/*.txt",
        f"{tmp_path} is a folder: name its files",
    ]
