"""Whole lines out of a file that grows, is cut and is replaced."""

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.shipping.followed_file import READ_BYTES, REST_BYTES_MAX, FollowedFile

LINES_MAX = 1000


def follow(path: Path, line_bytes_max: int = LINES_MAX) -> FollowedFile:
    return FollowedFile.open(str(path), None, line_bytes_max)


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


def test_other_content_of_the_same_size_is_read_from_its_beginning(path: Path) -> None:
    append(path, b"run 1\n")
    file = follow(path)
    assert texts(file) == [b"run 1"]
    path.write_bytes(b"run 2\n")
    assert texts(file) == [b"run 2"]
    file.close()


def test_content_that_only_its_end_tells_apart_is_read_from_its_beginning(path: Path) -> None:
    banner = b"=" * 2000 + b"\n"
    append(path, banner + b"run 1\n")
    file = follow(path)
    assert texts(file)[-1] == b"run 1"
    path.write_bytes(banner + b"run 2\nmore\n")
    assert texts(file)[-2:] == [b"run 2", b"more"]
    assert file.cuts == 1
    file.close()


def test_the_half_line_before_a_cut_is_a_line(path: Path) -> None:
    append(path, b"one\nhalf")
    file = follow(path)
    assert texts(file) == [b"one"]
    path.write_bytes(b"new\n")
    assert texts(file) == [b"half", b"new"]
    file.close()


def test_a_writer_that_goes_on_at_its_old_offset_after_a_cut_leaves_a_hole_that_is_not_read(path: Path) -> None:
    with path.open("wb", buffering=0) as writer:
        writer.write(b"old line\n" * 2000)
        file = follow(path)
        assert len(texts(file)) == 2000
        # Seen between the cut and what is written next, and not seen there.
        os.truncate(path, 0)
        assert texts(file) == []
        writer.write(b"first\n")
        assert texts(file) == [b"first"]
        os.truncate(path, 0)
        writer.write(b"second\n")
        assert texts(file) == [b"second"]
    file.close()


def test_content_is_compared_after_a_read_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(path, b"old 1\n")
    file = follow(path)
    assert texts(file) == [b"old 1"]
    append(path, b"old 2\n")
    pread = os.pread
    rewritten: list[bool] = []

    def rewrite_before_the_read(descriptor: int, size: int, offset: int) -> bytes:
        if offset == 6 and not rewritten:
            rewritten.append(True)
            path.write_bytes(b"new 1\nnew 2\nnew 3\n")
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", rewrite_before_the_read)
    assert texts(file) == [b"new 1", b"new 2", b"new 3"]
    file.close()


def test_what_was_read_before_the_file_was_written_anew_is_handed_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(path, b"old 1\n")
    file = follow(path)
    assert texts(file) == [b"old 1"]
    append(path, b"old 2\n")
    pread = os.pread
    rewritten: list[bool] = []

    def rewrite_after_the_read(descriptor: int, size: int, offset: int) -> bytes:
        chunk = pread(descriptor, size, offset)
        if offset == 6 and not rewritten:
            rewritten.append(True)
            path.write_bytes(b"new 1\nnew 2\nnew 3\n")
        return chunk

    monkeypatch.setattr(os, "pread", rewrite_after_the_read)
    assert texts(file) == [b"old 2", b"new 1", b"new 2", b"new 3"]
    file.close()


def test_the_position_of_a_rewritten_file_is_that_of_what_was_read(path: Path) -> None:
    append(path, b"old 1\n")
    file = follow(path)
    texts(file)
    path.write_bytes(b"new content, longer\n")
    # Noted before the next look: with the fingerprint of the new content a restart would go on in its middle.
    known = file.position_at(file.position)
    file.close()
    again = FollowedFile.open(str(path), known, LINES_MAX)
    assert texts(again) == [b"new content, longer"]
    again.close()


def test_little_of_a_long_unfinished_line_is_kept_in_memory(path: Path) -> None:
    file = follow(path, line_bytes_max=10 * REST_BYTES_MAX)
    append(path, b"x" * (3 * REST_BYTES_MAX))
    assert texts(file) == []
    file.trim()
    assert file._rest == b""
    append(path, b"\nnext\n")
    assert [len(text) for text in texts(file)] == [3 * REST_BYTES_MAX, 4]
    file.close()


def test_a_compressed_file_has_no_lines(path: Path) -> None:
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    file = follow(path)
    assert texts(file, is_complete=True) == []
    assert file.compression == "gzip"
    file.close()


def test_reading_goes_on_at_a_position_that_was_kept(path: Path) -> None:
    append(path, b"one\ntwo\nthree\n")
    file = follow(path)
    ends = [line.end for line in file.lines()]
    known = file.position_at(ends[0])
    file.close()
    again = FollowedFile.open(str(path), known, LINES_MAX)
    assert texts(again) == [b"two", b"three"]
    again.close()


def test_another_file_with_the_same_inode_is_not_taken_for_the_known_one(path: Path) -> None:
    append(path, b"one\ntwo\n")
    file = follow(path)
    list(file.lines())
    known = file.position_at(file.position)
    file.close()
    path.write_bytes(b"something else altogether\n")  # the inode stays
    again = FollowedFile.open(str(path), known, LINES_MAX)
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
        # Content that begins as a compressed file does is left out.
        for chunk in [b"log", *chunks]:
            append(path, chunk)
            written += chunk
            for line in file.lines():
                assert len(line.text) <= line_bytes_max
                rebuilt += line.text + (b"\n" if line.end > len(rebuilt) + len(line.text) else b"")
                assert line.end == len(rebuilt)
            if data.draw(st.booleans()):
                known = file.position_at(file.position)
                file.close()
                file = FollowedFile.open(str(path), known, line_bytes_max)
                assert file.position == len(rebuilt)
        rebuilt += b"".join(texts(file, is_complete=True))
    finally:
        file.close()
    assert rebuilt == written
