"""Lines become messages and messages become lines."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.messages import message_input
from headwater.cli.messages.message_format import Message, compile_format, format_json
from headwater.cli.messages.message_input import LineTooLongError, read_lines, split_key, unescape
from headwater.cli.messages.start_offset import StartKind, StartOffset, parse_start, resolve

KEYED = Message("flights", 3, 47, 1_357_016_400_000, b"N14228", b'{"dep_delay": 2}', (("source", b"file"), ("x", None)))
TOMBSTONE = Message("flights", 0, 0, -1, b"N14228", None)


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line), max_size=20))
def test_lines_come_back_as_they_were_written(lines: list[bytes]) -> None:
    assert list(read_lines(io.BytesIO(b"".join(line + b"\n" for line in lines)))) == lines


def test_a_line_over_the_limit_is_told_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_input, "LINE_BYTES_MAX", 3)
    lines = read_lines(io.BytesIO(b"abc\nabcd\n"))
    assert next(lines) == b"abc"
    with pytest.raises(LineTooLongError, match="line 2: it is longer than 3 bytes"):
        next(lines)


def test_only_the_first_separator_splits() -> None:
    assert split_key(b"a:b:c", b":") == (b"a", b"b:c")
    assert split_key(b"a::b", b"::") == (b"a", b"b")


@pytest.mark.parametrize("text", [r"\q", r"\xzz"])
def test_an_unknown_escape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="use"):
        unescape(text)


def test_a_backslash_at_the_end_stands_for_itself() -> None:
    assert unescape("a\\") == "a\\"


def test_every_directive_prints_its_part() -> None:
    show = compile_format(r"%t|%p|%o|%k|%v|%s|%T|%h|%K|%S|%%\t\x41\n")
    assert show(KEYED) == (
        b'flights|3|47|N14228|{"dep_delay": 2}|{"dep_delay": 2}|1357016400000|source=file,x=|6|16|%\tA\n'
    )


def test_a_tombstone_is_told_from_an_empty_value_by_its_size() -> None:
    assert compile_format("%v%S")(TOMBSTONE) == b"-1"
    assert json.loads(format_json(TOMBSTONE))["value"] is None


def test_an_escaped_percent_sign_is_no_directive() -> None:
    assert compile_format(r"\x25t")(KEYED) == b"%t"


@pytest.mark.parametrize("text", ["%", "%y", r"\y"])
def test_an_unknown_format_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="use"):
        compile_format(text)


def test_bytes_that_are_not_text_become_base64_and_say_so() -> None:
    document = json.loads(format_json(Message("t", 0, 0, 0, b"k", b"\xff")))
    assert (document["value"], document["value_encoding"], document["key"]) == ("/w==", "base64", "k")
    assert "key_encoding" not in document


@given(st.binary(), st.text())
def test_json_is_always_one_line(value: bytes, header: str) -> None:
    line = format_json(Message("t", 0, 0, 0, None, value, ((header, value),)))
    assert line.count(b"\n") == 1
    json.loads(line)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("start", StartOffset(StartKind.START)),
        ("end", StartOffset(StartKind.END)),
        ("0", StartOffset(StartKind.OFFSET, 0)),
        ("47", StartOffset(StartKind.OFFSET, 47)),
        ("-3", StartOffset(StartKind.BEFORE_END, 3)),
        ("@1357016400000", StartOffset(StartKind.TIMESTAMP, 1_357_016_400_000)),
        ("@2013-01-01T05:00:00", StartOffset(StartKind.TIMESTAMP, 1_357_016_400_000)),
        ("@2013-01-01T00:00:00-05:00", StartOffset(StartKind.TIMESTAMP, 1_357_016_400_000)),
        ("@2013-01-01", StartOffset(StartKind.TIMESTAMP, 1_356_998_400_000)),
    ],
)
def test_a_start_is_read(text: str, start: StartOffset) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "-", "@", "@yesterday", "latest", "4.7", "--3", "9" * 30, "٤"])
def test_what_is_no_start_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a position"):
        parse_start(text)


def test_an_offset_that_is_gone_is_the_nearest_one_kept() -> None:
    assert resolve(StartOffset(StartKind.OFFSET, 1), earliest=10, latest=20) == 10
    assert resolve(StartOffset(StartKind.OFFSET, 99), earliest=10, latest=20) == 20
    assert resolve(StartOffset(StartKind.START), earliest=10, latest=20) == 10
    assert resolve(StartOffset(StartKind.END), earliest=10, latest=20) == 20
