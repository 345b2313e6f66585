"""What is sent while files are rotated, and what is known of them after a crash; brokers and time are a script."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from headwater.shipping import shipper as module
from headwater.shipping.shipped_file import GRACE_S
from headwater.shipping.shipper import LOOK_S
from tests.unit.shipping.conftest import Brokers, Runs, Script, append, pause


def test_what_is_written_after_a_rename_until_the_writer_reopens_arrives(runs: Runs) -> None:
    path = runs.folder / "app.log"

    def script() -> Script:
        append(path, "before\n")
        yield from pause()
        path.rename(runs.folder / "app.log.1")
        for number in range(5):
            yield from pause(GRACE_S / 2)
            append(runs.folder / "app.log.1", f"late {number}\n")
        append(path, "new\n")
        yield from pause()

    runs.run(script(), "app.log")
    assert runs.brokers.lines == [("app.log", text) for text in ["before", *(f"late {n}" for n in range(5)), "new"]]


def test_a_half_line_that_is_completed_after_a_rename_is_one_line(runs: Runs) -> None:
    path = runs.folder / "app.log"

    def script() -> Script:
        append(path, "one\ntw")
        yield from pause()
        path.rename(runs.folder / "app.log.1")
        append(path, "new\n")
        yield from pause(GRACE_S / 2)
        append(runs.folder / "app.log.1", "o, who")
        yield from pause(GRACE_S - 5)
        append(runs.folder / "app.log.1", "le\n")
        yield from pause()

    runs.run(script(), "app.log")
    assert runs.brokers.texts == ["one", "new", "two, whole"]


def test_a_rotated_file_that_grows_no_more_is_let_go_with_its_last_line(runs: Runs) -> None:
    path = runs.folder / "app.log"

    def script() -> Script:
        append(path, "one\nwithout an end")
        yield from pause()
        path.unlink()
        yield from pause(GRACE_S - 5)
        assert runs.brokers.texts == ["one"]
        yield from pause(10)
        assert runs.brokers.texts == ["one", "without an end"]
        # Nobody has it open any more, and it exists nowhere.
        assert str(path) not in " ".join(open_files())
        assert runs.known() == {}

    runs.run(script(), "app.log")


def open_files() -> Iterator[str]:
    """What the process has open; other threads may close a file meanwhile."""
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{descriptor}")


def test_a_file_that_is_being_left_goes_on_after_a_crash_where_it_was(runs: Runs) -> None:
    path = runs.folder / "app.log"

    def before() -> Script:
        append(path, "one\n")
        yield from pause()
        path.rename(runs.folder / "app.log.1")
        append(runs.folder / "app.log.1", "late\nha")
        yield from pause()

    def after() -> Script:
        append(runs.folder / "app.log.1", "lf\n")
        append(path, "new\n")
        yield from pause()

    runs.crash(before(), "app.log")
    runs.run(after(), "app.log")
    assert runs.brokers.lines == [("app.log", text) for text in ["one", "late", "half", "new"]]


@pytest.mark.parametrize("rotated", ["app-2026-11-23.log", "app.log.1"])
def test_a_file_that_is_renamed_into_the_pattern_is_not_sent_again(runs: Runs, rotated: str) -> None:
    path = runs.folder / "app.log"

    def script() -> Script:
        append(path, "one\n")
        yield from pause()
        path.rename(runs.folder / rotated)
        append(path, "new\n")
        append(runs.folder / rotated, "late\n")
        yield from pause()

    runs.run(script(), "app*.log*")
    assert runs.brokers.lines == [("app.log", "one"), (rotated, "late"), ("app.log", "new")]
    assert runs.known() == {"app.log": 4, rotated: 9}


def test_a_file_that_was_renamed_into_the_pattern_while_nobody_followed_it_is_not_sent_again(runs: Runs) -> None:
    path = runs.folder / "app.log"
    append(path, "one\n")
    runs.run(pause(), "app.log*")
    append(path, "two\n")
    path.rename(runs.folder / "app.log.1")
    append(path, "new\n")
    runs.run(pause(), "app.log*")
    assert sorted(runs.brokers.lines) == [("app.log", "new"), ("app.log", "one"), ("app.log.1", "two")]


def test_a_file_that_comes_back_into_the_pattern_after_it_was_let_go_is_not_sent_again(runs: Runs) -> None:
    path = runs.folder / "app.log"

    def script() -> Script:
        append(path, "one\n")
        yield from pause()
        path.rename(runs.folder / "aside")
        yield from pause(2 * GRACE_S)
        (runs.folder / "aside").rename(runs.folder / "app.log.1")
        yield from pause()

    runs.run(script(), "app.log*")
    assert runs.brokers.texts == ["one"]


def test_a_new_file_with_the_inode_and_the_beginning_of_one_that_was_let_go_is_sent_whole(runs: Runs) -> None:
    path = runs.folder / "app.log"

    def script() -> Script:
        append(path, "header\n")
        yield from pause()
        path.rename(runs.folder / "aside")
        yield from pause(2 * GRACE_S)
        # An inode that is used again, without chance: written to anew.
        (runs.folder / "aside").write_text("header\nnew\n")
        os.utime(runs.folder / "aside", ns=(0, 0))
        (runs.folder / "aside").rename(path)
        yield from pause()

    runs.run(script(), "app.log")
    assert runs.brokers.texts == ["header", "header", "new"]


@pytest.mark.parametrize("link", ["current.log", "a-link.log"])
def test_a_link_beside_its_file_does_not_double_it(runs: Runs, link: str) -> None:
    first, second = runs.folder / "app-1.log", runs.folder / "app-2.log"

    def script() -> Script:
        append(first, "one\n")
        (runs.folder / link).symlink_to(first.name)
        yield from pause()
        append(second, "two\n")
        (runs.folder / link).unlink()
        (runs.folder / link).symlink_to(second.name)
        append(first, "late\n")
        yield from pause()

    runs.run(script(), "*.log")
    assert runs.brokers.lines == [("app-1.log", "one"), ("app-1.log", "late"), ("app-2.log", "two")]


def test_a_link_alone_that_leads_elsewhere_is_a_rotation(runs: Runs) -> None:
    link = runs.folder / "current"

    def script() -> Script:
        append(runs.folder / "1.log", "one\n")
        link.symlink_to("1.log")
        yield from pause()
        append(runs.folder / "2.log", "two\n")
        link.unlink()
        link.symlink_to("2.log")
        append(runs.folder / "1.log", "late\n")
        yield from pause()

    runs.run(script(), "current")
    assert runs.brokers.lines == [("current", "one"), ("current", "late"), ("current", "two")]


def test_a_file_that_is_copied_and_cut_begins_anew(runs: Runs) -> None:
    path = runs.folder / "app.log"

    def script() -> Script:
        append(path, "a long line\n")
        yield from pause()
        path.write_text("new\n")
        yield from pause()

    runs.run(script(), "app.log")
    path.write_text("3\n")
    runs.run(pause(), "app.log")
    assert runs.brokers.texts == ["a long line", "new", "3"]


def test_a_crash_after_a_cut_while_the_brokers_are_away_loses_no_line_of_the_new_content(runs: Runs) -> None:
    path = runs.folder / "app.log"

    def script() -> Script:
        append(path, "a long line\n")
        yield from pause()
        runs.brokers.is_away = True
        path.write_text("new\n")
        yield from pause()
        append(path, "and longer than before\n")
        yield from pause()

    runs.crash(script(), "app.log")
    runs.run(pause(), "app.log")
    assert runs.brokers.texts == ["a long line", "new", "and longer than before"]


def rotate_twice_while_the_brokers_are_away(runs: Runs) -> Script:
    path = runs.folder / "app.log"
    append(path, "".join(f"first {number}\n" for number in range(10)))
    runs.brokers.is_away = True
    yield from pause()
    path.rename(runs.folder / "app.log.1")
    append(path, "second\n")
    yield from pause()
    (runs.folder / "app.log.1").rename(runs.folder / "app.log.2")
    path.rename(runs.folder / "app.log.1")
    append(path, "third\n")
    yield from pause()


ALL_OF_THREE_FILES = [*(f"first {number}" for number in range(10)), "second", "third"]


def test_a_file_that_is_rotated_and_removed_while_the_brokers_are_away_is_sent_when_they_come(runs: Runs) -> None:
    def script() -> Script:
        yield from rotate_twice_while_the_brokers_are_away(runs)
        (runs.folder / "app.log.1").unlink()
        (runs.folder / "app.log.2").unlink()
        yield from pause(2 * GRACE_S)
        runs.brokers.is_away = False
        yield from pause()

    runs.run(script(), "app.log")
    assert runs.brokers.lines == [("app.log", text) for text in ALL_OF_THREE_FILES]


def test_a_crash_after_two_rotations_while_the_brokers_were_away_loses_no_line(runs: Runs) -> None:
    runs.crash(rotate_twice_while_the_brokers_are_away(runs), "app.log")
    assert runs.brokers.lines == []
    runs.run(pause(), "app.log")
    assert runs.brokers.lines == [("app.log", text) for text in ALL_OF_THREE_FILES]


def test_a_crash_loses_no_line_of_two_rotated_files_that_were_not_acknowledged(runs: Runs) -> None:
    path = runs.folder / "app.log"
    runs.brokers = Brokers(queue_max=1000)
    runs.crash(rotate_twice_while_the_brokers_are_away(runs), "app.log")
    assert path.exists()
    runs.run(pause(), "app.log")
    assert runs.brokers.lines == [("app.log", text) for text in ALL_OF_THREE_FILES]


def test_the_next_file_of_a_name_waits_for_all_turns_of_the_one_before(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINES_PER_TURN", 3)
    path = runs.folder / "app.log"

    def script() -> Script:
        append(path, "one\n")
        yield from pause()
        append(path, "".join(f"{number}\n" for number in range(10)))
        path.rename(runs.folder / "app.log.1")
        append(path, "new\n")
        yield from pause()

    runs.run(script(), "app.log")
    assert runs.brokers.texts == ["one", *(str(number) for number in range(10)), "new"]


def test_what_is_known_of_a_file_goes_with_the_file(runs: Runs) -> None:
    path = runs.folder / "app.log"

    def script() -> Script:
        append(path, "one\n")
        yield from pause()
        path.rename(runs.folder / "aside")
        yield from pause(LOOK_S)
        assert runs.known() == {"app.log": 4}
        (runs.folder / "aside").unlink()
        yield from pause(LOOK_S + 2)
        assert runs.known() == {}

    runs.run(script(), "app.log")


def test_a_file_that_was_removed_unsent_while_nobody_followed_it_is_said_once(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    path = runs.folder / "app.log"
    append(path, "one\n")
    runs.run(pause(), "app.log")
    path.unlink()
    with caplog.at_level(logging.WARNING):
        runs.run(pause(), "app.log")
        runs.run(pause(), "app.log")
    assert [record.getMessage() for record in caplog.records if "is gone" in record.getMessage()] == [
        f"{path} is gone since it was last followed: what was not sent of it is lost"
    ]
    assert runs.known() == {}


def test_a_file_that_is_not_asked_for_any_more_is_not_sent_on(runs: Runs) -> None:
    append(runs.folder / "a.log", "a\n")
    append(runs.folder / "b.log", "b\n")
    runs.run(pause(), "a.log", "b.log")
    append(runs.folder / "b.log", "not wanted\n")
    runs.run(pause(), "a.log")
    assert runs.brokers.texts == ["a", "b"]
    assert runs.known() == {"a.log": 2, "b.log": 2}


def test_to_the_end_sends_the_last_line_and_what_was_rotated_before(runs: Runs) -> None:
    path = runs.folder / "app.log"
    append(path, "one\n")
    runs.run(pause(), "app.log")
    append(path, "two")
    path.rename(runs.folder / "app.log.1")
    append(path, "three")
    runs.run(pause(), "app.log", is_to_end=True)
    assert runs.brokers.texts == ["one", "two", "three"]
