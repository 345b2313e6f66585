"""Whole lines out of a file that grows, is cut and is replaced."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.followed_file import READ_BYTES, FollowedFile

LINES_MAX = 1000


def follow(path: Path, line_bytes_max: int = LINES_MAX) -> FollowedFile:
    return FollowedFile.open(str(path), None, line_bytes_max, from_end=False)


def texts(file: FollowedFile, *, is_complete: bool = False) -> list[bytes]:
    return [line.text for line in file.lines(is_complete=is_complete)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.log"
    path.touch()
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def test_a_line_counts_once_it_has_its_end(path: Path) -> None:
    file = follow(path)
    append(path, b"one\ntw")
    assert texts(file) == [b"one"]
    append(path, b"o\n\n")
    assert texts(file) == [b"two", b""]
    assert texts(file) == []
    file.close()


def test_the_last_line_of_a_file_that_grows_no_more_counts_without_end(path: Path) -> None:
    append(path, b"one\ntwo")
    file = follow(path)
    assert texts(file, is_complete=True) == [b"one", b"two"]
    assert file.position == 7
    file.close()


def test_a_line_that_is_too_long_comes_in_pieces_that_make_it_whole(path: Path) -> None:
    file = follow(path, line_bytes_max=10)
    append(path, b"x" * 25 + b"\nshort\n")
    assert texts(file) == [b"x" * 10, b"x" * 10, b"x" * 5, b"short"]
    file.close()


def test_a_line_of_many_reads_is_one_line(path: Path) -> None:
    file = follow(path, line_bytes_max=3 * READ_BYTES)
    append(path, b"x" * (2 * READ_BYTES + 5) + b"\n")
    assert [len(text) for text in texts(file)] == [2 * READ_BYTES + 5]
    file.close()


def test_a_file_that_was_cut_begins_anew(path: Path) -> None:
    append(path, b"old line one\nold line two\n")
    file = follow(path)
    assert len(texts(file)) == 2
    path.write_bytes(b"new\n")
    assert file.cuts == 0
    assert texts(file) == [b"new"]
    assert file.cuts == 1
    file.close()


def test_reading_goes_on_at_a_position_that_was_kept(path: Path) -> None:
    append(path, b"one\ntwo\nthree\n")
    file = follow(path)
    ends = [line.end for line in file.lines()]
    known = file.position_at(ends[0])
    file.close()
    again = FollowedFile.open(str(path), known, LINES_MAX, from_end=False)
    assert texts(again) == [b"two", b"three"]
    again.close()


def test_another_file_with_the_same_inode_is_not_taken_for_the_known_one(path: Path) -> None:
    append(path, b"one\ntwo\n")
    file = follow(path)
    list(file.lines())
    known = file.position_at(file.position)
    file.close()
    path.write_bytes(b"something else altogether\n")  # the inode stays
    again = FollowedFile.open(str(path), known, LINES_MAX, from_end=False)
    assert texts(again) == [b"something else altogether"]
    again.close()


def test_lines_that_were_not_asked_for_come_later(path: Path) -> None:
    append(path, b"one\ntwo\nthree\n")
    file = follow(path)
    for line in file.lines():
        assert line.text == b"one"
        break
    assert texts(file) == [b"two", b"three"]
    file.close()


@given(st.lists(st.binary(max_size=60), max_size=20), st.integers(1, 40), st.data())
def test_however_a_file_grows_and_is_reopened_its_lines_are_its_content(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], line_bytes_max: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("grows") / "f"
    path.touch()
    file = follow(path, line_bytes_max)
    rebuilt = b""
    written = b""
    try:
        for chunk in chunks:
            append(path, chunk)
            written += chunk
            for line in file.lines():
                assert len(line.text) <= line_bytes_max
                rebuilt += line.text + (b"\n" if line.end > len(rebuilt) + len(line.text) else b"")
                assert line.end == len(rebuilt)
            if data.draw(st.booleans()):
                known = file.position_at(file.position)
                file.close()
                file = FollowedFile.open(str(path), known, line_bytes_max, from_end=False)
                assert file.position == len(rebuilt)
        rebuilt += b"".join(texts(file, is_complete=True))
    finally:
        file.close()
    assert rebuilt == written
