"""One bad file, line, disk or broker: the others go on, it is told, and nothing is lost."""

from __future__ import annotations

import errno
import gzip
import logging
import os

import pytest

from headwater.shipping import line_sender
from headwater.shipping import shipper as module
from headwater.shipping.line_sender import LIMIT_BYTES_MIN
from headwater.shipping.shipper import REFUSED_PATIENCE_S
from tests.unit.shipping.conftest import Runs, Script, append, pause


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def test_a_file_that_is_written_anew_and_is_longer_than_before_loses_no_line(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    path = runs.folder / "cron.log"
    first, second = ([f"run {run}, line {number}" for number in range(run * 100)] for run in (1, 2))

    def script() -> Script:
        path.write_text("".join(f"{line}\n" for line in first))
        yield from pause()
        path.write_text("".join(f"{line}\n" for line in second))
        yield from pause()

    runs.run(script(), "cron.log")
    assert runs.brokers.texts == first + second
    assert said(caplog, "written anew") == [f"{path} was cut or written anew: it is sent from its beginning"]


def test_a_file_that_is_written_anew_while_the_brokers_are_away_is_sent_after_a_crash(runs: Runs) -> None:
    path = runs.folder / "cron.log"

    def script() -> Script:
        path.write_text("run 1\n")
        yield from pause()
        runs.brokers.is_away = True
        path.write_text("run 2, longer\nthan before\n")
        # Positions are written meanwhile, before and after it is looked at.
        yield from pause(5)

    runs.crash(script(), "cron.log")
    runs.run(pause(), "cron.log")
    assert runs.brokers.texts == ["run 1", "run 2, longer", "than before"]


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Paths whose reads fail."""
    paths: set[str] = set()
    pread = os.pread

    def failing(descriptor: int, size: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}") in paths:
            raise OSError(errno.EIO, "Input/output error")
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", failing)
    return paths


def test_a_file_that_cannot_be_read_holds_up_no_other_and_is_tried_again(
    runs: Runs, unreadable: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = runs.folder / "bad.log", runs.folder / "good.log"

    def script() -> Script:
        append(bad, "one\n")
        append(good, "1\n")
        yield from pause()
        unreadable.add(str(bad))
        append(bad, "two\n")
        append(good, "2\n")
        yield from pause(10)
        assert runs.brokers.texts == ["one", "1", "2"]
        unreadable.clear()
        yield from pause(20)

    assert runs.run(script(), "*.log").mistakes() == []
    assert runs.brokers.texts == ["one", "1", "2", "two"]
    assert said(caplog, "cannot be read") == [f"{bad} cannot be read at byte 4: Input/output error"]


def test_to_the_end_names_what_could_not_be_read(runs: Runs, unreadable: set[str]) -> None:
    append(runs.folder / "bad.log", "one\n")
    append(runs.folder / "good.log", "1\n")
    unreadable.add(str(runs.folder / "bad.log"))
    summary = runs.run(pause(), "*.log", "none.log", is_to_end=True)
    assert runs.brokers.texts == ["1"]
    assert summary.mistakes() == [
        f"{runs.folder}/none.log cannot be read: No such file or directory",
        f"{runs.folder}/bad.log cannot be read at byte 0: Input/output error",
    ]


def test_a_full_disk_under_the_positions_stops_nothing(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = runs.folder / "app.log"

    def script() -> Script:
        with monkeypatch.context() as patched:
            patched.setattr(module, "save_positions", full)
            for number in range(5):
                append(path, f"{number}\n")
                yield from pause()
        assert runs.brokers.texts == list("01234")
        yield from pause(module.RETRY_MAX_S)
        assert runs.known() == {"app.log": 10}
        monkeypatch.setattr(module, "save_positions", full)
        append(path, "5\n")
        yield from pause()

    summary = runs.run(script(), "app.log")
    assert summary.mistakes() == [
        f"{runs.positions} cannot be written: No space left on device: lines are sent again by the next run"
    ]
    assert said(caplog, "No space left")


def test_lines_and_batches_fit_what_the_topic_allows(runs: Runs) -> None:
    runs.brokers.limit = 2000
    append(runs.folder / "app.log", "x" * 5000 + "\nshort\n")
    assert runs.run(pause(), "app.log").mistakes() == []
    assert "".join(runs.brokers.texts) == "x" * 5000 + "short"
    assert max(map(len, runs.brokers.texts)) < 2000
    assert runs.brokers.properties[0]["batch.size"] == 2000


def test_a_limit_that_nobody_tells_is_found(runs: Runs) -> None:
    runs.brokers.refusal = lambda text: "MSG_SIZE_TOO_LARGE" if len(text) > 10_000 else None
    lines = ["before", "x" * 50_000, "after"]
    append(runs.folder / "app.log", "".join(f"{line}\n" for line in lines))
    assert runs.run(pause(10), "app.log").mistakes() == []
    assert "".join(runs.brokers.texts).endswith("x" * 50_000 + "after")
    assert runs.known() == {"app.log": 50_014}


def test_a_line_that_is_refused_for_what_it_is_is_left_out_and_named(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    runs.brokers.refusal = lambda text: "INVALID_RECORD" if text == b"bad" else None
    path = runs.folder / "app.log"
    append(path, "one\nbad\ntwo\n")
    assert runs.run(pause(), "app.log").mistakes() == ["1 lines are lost, see above"]
    assert runs.brokers.texts == ["one", "two"]
    assert said(caplog, "refused") == [
        f"the line of 3 bytes at byte 4 of {path} is refused by topic 't' for what it is: it is left out"
    ]
    assert runs.known() == {"app.log": 12}


def test_batches_that_are_refused_at_any_size_end_the_search(runs: Runs) -> None:
    runs.brokers.refusal = lambda _: "MSG_SIZE_TOO_LARGE"
    append(runs.folder / "app.log", "one\n")
    assert runs.run(pause(20), "app.log").mistakes() == ["1 lines are lost, see above"]
    assert runs.brokers.properties[-1]["batch.size"] == LIMIT_BYTES_MIN


def test_a_transient_refusal_is_said_at_growing_pauses_and_loses_nothing(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    append(runs.folder / "app.log", "one\ntwo\n")

    def script() -> Script:
        runs.brokers.refusal = lambda _: "TOPIC_AUTHORIZATION_FAILED"
        yield from pause(200)
        runs.brokers.refusal = lambda _: None
        yield from pause(100)

    assert runs.run(script(), "app.log").mistakes() == []
    assert runs.brokers.texts == ["one", "two"]
    reports = said(caplog, "nothing was acknowledged")
    assert 3 <= len(reports) <= 8
    assert all("TOPIC_AUTHORIZATION_FAILED" in report for report in reports)


def test_to_the_end_of_brokers_that_refuse_is_a_mistake(runs: Runs) -> None:
    runs.brokers.refusal = lambda _: "TOPIC_AUTHORIZATION_FAILED"
    path = runs.folder / "app.log"
    append(path, "one\ntwo\n")
    summary = runs.run(pause(2 * REFUSED_PATIENCE_S), "app.log", is_to_end=True)
    assert summary.mistakes() == [f"8 bytes of {path} were not delivered: TOPIC_AUTHORIZATION_FAILED"]
    assert runs.known() == {"app.log": 0}


def test_more_files_than_may_be_open_are_all_sent_and_go_on(runs: Runs) -> None:
    paths = [runs.folder / f"{number}.log" for number in range(10)]

    def script() -> Script:
        for path in paths:
            append(path, f"{path.name} 1\n")
        yield from pause(20)
        # Now they are idle, most of them closed.
        for path in reversed(paths):
            append(path, f"{path.name} 2\n")
        yield from pause(20)

    runs.run(script(), "*.log", files_max=3)
    assert sorted(runs.brokers.texts) == sorted(f"{path.name} {number}" for path in paths for number in (1, 2))


def test_a_closed_file_that_is_rotated_with_something_new_is_sent_to_its_end(runs: Runs) -> None:
    first, second = runs.folder / "a.log", runs.folder / "b.log"

    def script() -> Script:
        append(first, "one\n")
        yield from pause(3)
        append(second, "closes it\n")
        yield from pause(3)
        append(first, "late\n")
        first.rename(runs.folder / "a.log.1")
        append(first, "new\n")
        yield from pause(90)

    runs.run(script(), "*.log", files_max=1)
    assert sorted(runs.brokers.texts) == ["closes it", "late", "new", "one"]
    assert runs.brokers.texts.index("late") < runs.brokers.texts.index("new")


def test_from_the_end_counts_from_the_start_for_files_that_are_opened_later(runs: Runs) -> None:
    for name in "abc":
        append(runs.folder / f"{name}.log", "old\n")

    def script() -> Script:
        for name in "abc":
            append(runs.folder / f"{name}.log", f"new of {name}\n")
        yield from pause(10)

    def begin() -> Script:
        yield 0.0
        yield from script()

    runs.run(begin(), "*.log", files_max=1, from_end=True)
    assert sorted(runs.brokers.texts) == ["new of a", "new of b", "new of c"]


def test_compressed_files_are_left_out_and_told_once(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    append(runs.folder / "app.log", "one\n")
    packed = runs.folder / "app.log.1"
    packed.write_bytes(gzip.compress(b"not text\n"))
    append(runs.folder / "debug.log", "not wanted\n")
    assert runs.run(pause(10), "*.log*", excluded=["debug.*"]).mistakes() == []
    assert runs.brokers.texts == ["one"]
    assert said(caplog, "compressed") == [f"{packed} is compressed (gzip): it is left out"]


def test_a_compressed_file_that_was_not_read_yet_does_not_hold_up_the_one_that_takes_its_name(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_sender, "QUEUE_LINES_MAX", 2)
    runs.brokers.is_away = True
    append(runs.folder / "a.log", "x\n" * 10)  # fills the queue: nothing more is read
    (runs.folder / "app.log").write_bytes(gzip.compress(b"not text\n"))

    def script() -> Script:
        yield from pause(10)
        (runs.folder / "app.log").rename(runs.folder / "app.log.1.gz")
        append(runs.folder / "app.log", "hello\n")
        yield from pause(10)
        runs.brokers.is_away = False
        yield from pause(30)

    runs.run(script(), "*.log")
    assert "hello" in runs.brokers.texts


@pytest.mark.parametrize("bound", ["QUEUE_LINES_MAX", "QUEUE_BYTES_MAX"])
def test_what_is_under_way_is_bounded(runs: Runs, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(line_sender, bound, 100)
    runs.brokers._queue_max = 10_000
    append(runs.folder / "app.log", "".join(f"{number}\n" for number in range(1000)))

    def script() -> Script:
        runs.brokers.is_away = True
        yield from pause()
        assert 0 < len(runs.brokers._queue) <= 100
        runs.brokers.is_away = False
        yield from pause(100)

    runs.run(script(), "app.log")
    assert runs.brokers.texts == [str(number) for number in range(1000)]


def test_idle_files_are_not_read(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        append(runs.folder / f"{number}.log", "line\n")
        os.utime(runs.folder / f"{number}.log", (0, 0))
    reads: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        reads.append(descriptor)
        return pread(descriptor, size, offset)

    def script() -> Script:
        yield from pause(20)
        reads.clear()
        monkeypatch.setattr(os, "pread", counted)
        yield from pause(20)
        assert reads == []
        append(runs.folder / "7.log", "more\n")
        yield from pause()

    runs.run(script(), "*.log")
    assert runs.brokers.texts[-1] == "more"
    assert len(set(reads)) == 1


def test_a_stop_tells_what_is_not_acknowledged(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.05)
    append(runs.folder / "app.log", "one\n")

    def script() -> Script:
        runs.brokers.is_away = True
        yield from pause()

    assert runs.run(script(), "app.log").mistakes() == [
        "1 lines were not acknowledged and are sent again by the next run"
    ]
    assert runs.known() == {"app.log": 0}


def test_nothing_is_logged_while_all_is_well(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    def script() -> Script:
        for number in range(30):
            append(runs.folder / "app.log", f"{number}\n")
            yield from pause()

    with caplog.at_level(logging.INFO):
        append(runs.folder / "app.log", "first\n")
        runs.run(script(), "app.log")
    assert [record.getMessage() for record in caplog.records] == []
