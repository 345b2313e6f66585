"""One archive's failure is its own, whatever it is. Without Spark, and without a broker that answers."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Collection, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from headwater.pipelines.archive import running, schedule
from headwater.pipelines.archive.archive_file import TopicArchiveSpec, parse_archive
from headwater.pipelines.archive.archive_round import RoundOutcome
from headwater.pipelines.archive.configured import KnownArchives, RefusedArchive
from headwater.pipelines.archive.log_ends import LogEnds
from headwater.pipelines.archive.maintenance import COMPACT_FILES, VACUUM_S
from headwater.pipelines.archive.round_plan import RoundPlan
from headwater.pipelines.archive.running import ArchiveRun, RoundFailure
from headwater.pipelines.archive.topic_archive import TopicArchive
from headwater.pipelines.definition import Loaded
from headwater.pipelines.file_systems.file_system import FileSystem, FileSystemError
from headwater.pipelines.locks.broker_lock import LockHeldError
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOBODY = "127.0.0.1:1"


def declared(*topics: str) -> tuple[list[TopicArchiveSpec], Loaded]:
    return parse_archive(f"archive: {{root: /lake, topics: {{{', '.join(f'{each}: ' for each in topics)}}}}}",
                         "archive.yaml", {}, "/", {}, lambda _: "")  # fmt: skip


def no_files(table: str) -> FileSystem:
    raise FileSystemError(f"{table} cannot be used: wrong settings")


def no_spark() -> SparkSession:
    context = SimpleNamespace(cancelJobsWithTag=lambda _: None, addJobTag=lambda _: None)
    return cast("SparkSession", SimpleNamespace(sparkContext=context, newSession=no_spark))


@contextlib.contextmanager
def started(run: ArchiveRun) -> Iterator[threading.Thread]:
    """A run in a thread of its own."""
    thread = threading.Thread(target=run.run, args=(no_spark,))
    thread.start()
    try:
        yield thread
    finally:
        run.stop()
        thread.join(60)
        assert not thread.is_alive()


class Rounds:
    """Rounds without Spark and brokers: each adds an offset, and leaves `backlog` more. How many, by topic."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.backlog = 0
        self.before: Callable[[str], None] = lambda topic: None
        self.files_saved = 0
        self.vacuumed_ago_s = 0.0
        self.maintained: list[tuple[str, str]] = []
        self.maintaining: Callable[[str], None] = lambda table: None

    def of(self, topic: str) -> int:
        return self.counts.get(topic, 0)

    def maintain(self, what: str, table: str) -> None:
        self.maintained.append((what, table))
        self.maintaining(table)

    def run(self, archive: TopicArchive, *_: object) -> RoundOutcome:
        topic, table = archive.spec.topic, archive.spec.table
        self.counts[topic] = number = self.of(topic) + 1
        self.before(topic)
        plan = RoundPlan({0: (number - 1, number)}, {}, {0: number}, self.backlog)
        return RoundOutcome(topic, table, number, plan, {0: number}, 1, 0, 1)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    made = Rounds()

    def opened(archive: TopicArchive) -> None:
        monkeypatch.setattr(archive, "_lock", SimpleNamespace(release=lambda: None, confirm=lambda: None))

    def run_round(archive: TopicArchive, *given: object) -> RoundOutcome:
        return made.run(archive, *given)

    monkeypatch.setattr(running, "LOOK_S", 0.05)
    monkeypatch.setattr(running, "LIST_S", 0.05)
    monkeypatch.setattr(LogEnds, "ask", lambda *_: {})
    monkeypatch.setattr(TopicArchive, "open", opened)
    monkeypatch.setattr(TopicArchive, "commit_group", lambda *_: None)
    monkeypatch.setattr(TopicArchive, "run_round", run_round)
    monkeypatch.setattr(running, "spark_files", lambda *_: None)
    monkeypatch.setattr(running, "vacuumed_s", lambda *_: time.time() - made.vacuumed_ago_s)
    monkeypatch.setattr(running, "files_saved", lambda *_: made.files_saved)
    monkeypatch.setattr(running, "compact", lambda _, table, *__: made.maintain("compact", table))
    monkeypatch.setattr(running, "vacuum", lambda _, table, *__: made.maintain("vacuum", table))
    return made


def full_disk(_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_table_whose_file_system_cannot_be_is_the_failure_of_its_archive() -> None:
    specs, loaded = declared("a", "b")
    failures = ArchiveRun(specs, loaded, NOBODY, no_files).run_once(no_spark)
    assert {each.topic: each.error for each in failures} == {
        each: f"/lake/{each} cannot be used: wrong settings" for each in ("a", "b")
    }
    assert all(each.is_user_error for each in failures)


def test_an_archive_that_is_listed_and_cannot_be_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LIST_S", 0.05)
    monkeypatch.setattr(running, "LOOK_S", 0.05)
    failures: list[RoundFailure] = []
    first, second = declared("a"), declared("a", "b")

    def listed(present: Collection[str]) -> KnownArchives:
        specs, loaded = second if any(each.topic == "a" for each in failures) else first
        return KnownArchives(tuple(specs), loaded)

    run = ArchiveRun([], first[1], NOBODY, no_files, listed=listed, on_failure=failures.append)
    thread = threading.Thread(target=run.run, args=(no_spark,))
    thread.start()
    try:
        until(lambda: {each.topic for each in failures} == {"a", "b"})
        assert {each.topic for each in run.counts() if each.is_failing} == {"a", "b"}
        assert thread.is_alive()
    finally:
        run.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert all(each.retry_s for each in failures)


def test_looks_go_on_after_an_error_that_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running, "LOOK_S", 0.01)
    looks: list[Collection[str]] = []

    def ask(self: LogEnds, cluster: object, names: Collection[str]) -> dict[str, int]:
        looks.append(names)
        if len(looks) < 3:
            raise KeyError("a")
        return {}

    monkeypatch.setattr(LogEnds, "ask", ask)
    specs, loaded = declared("a")
    run = ArchiveRun(specs, loaded, NOBODY, no_files)
    thread = threading.Thread(target=run.run, args=(no_spark,))
    thread.start()
    try:
        until(lambda: len(looks) >= 5)
    finally:
        run.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert [each.getMessage() for each in caplog.records if "ends of the logs" in each.getMessage()] == [
        "the ends of the logs were not asked for: unexpected KeyError: 'a'"
    ]


def test_lines_that_cannot_be_written_stop_no_archive_and_are_said_once(
    rounds: Rounds, caplog: pytest.LogCaptureFixture
) -> None:
    rounds.backlog = 5
    specs, loaded = declared("a")
    run = ArchiveRun(specs, loaded, NOBODY, no_files, on_round=full_disk)
    with started(run):
        until(lambda: rounds.of("a") >= 3)
        assert [each.is_failing for each in run.counts()] == [False]
    assert [each.getMessage() for each in caplog.records if "shown" in each.getMessage()] == [
        "a round that has ended could not be shown: OSError: [Errno 28] No space left on device"
    ]


def test_lines_that_cannot_be_written_fail_no_single_run(rounds: Rounds) -> None:
    specs, loaded = declared("a", "b")

    def broken_pipe() -> None:
        raise BrokenPipeError

    run = ArchiveRun(specs, loaded, NOBODY, no_files, on_round=full_disk, on_end=broken_pipe)
    assert run.run_once(no_spark) == []
    assert rounds.counts == {"a": 1, "b": 1}


def test_a_refusal_that_cannot_be_shown_does_not_end_the_listing(rounds: Rounds) -> None:
    specs, loaded = declared("a")
    listed: list[Collection[str]] = []

    def known(present: Collection[str]) -> KnownArchives:
        listed.append(present)
        return KnownArchives(tuple(specs), loaded, {"bad": RefusedArchive(f"bad config {len(listed)}")})

    run = ArchiveRun(specs, loaded, NOBODY, no_files, listed=known, on_failure=full_disk)
    with started(run):
        until(lambda: len(listed) >= 3)


def test_an_answer_that_nobody_foresaw_does_not_end_the_listing(rounds: Rounds) -> None:
    specs, loaded = declared("a")
    listed: list[Collection[str]] = []

    def known(present: Collection[str]) -> KnownArchives:
        listed.append(present)
        return cast("KnownArchives", None) if len(listed) < 3 else KnownArchives(tuple(specs), loaded)

    with started(ArchiveRun(specs, loaded, NOBODY, no_files, listed=known)):
        until(lambda: len(listed) >= 4)


def test_an_archive_whose_first_round_has_not_ended_is_not_shown_as_caught_up(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    rounds.before = lambda _: cast("None", may_end.wait(120))
    monkeypatch.setattr(LogEnds, "ask", lambda *_: {"a": 1})
    specs, loaded = declared("a")
    run = ArchiveRun(specs, loaded, NOBODY, no_files)
    assert [(each.behind, each.waiting_s) for each in run.counts()] == [(None, None)]
    with started(run):
        until(lambda: (run.counts()[0].waiting_s or 0) > 0)
        assert run.counts()[0].behind is None
        may_end.set()
        until(lambda: run.counts()[0].behind == 0)
        assert run.counts()[0].waiting_s == 0


def test_of_an_archive_that_another_driver_has_nothing_is_known(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(archive: TopicArchive) -> None:
        raise LockHeldError("the archive of a", None)

    monkeypatch.setattr(TopicArchive, "open", held)
    monkeypatch.setattr(LogEnds, "ask", lambda *_: {"a": 1})
    specs, loaded = declared("a")
    run = ArchiveRun(specs, loaded, NOBODY, no_files)
    with started(run):
        until(lambda: run.counts()[0].is_failing)
        until(lambda: run._topics[0].progress.ends == 1)
        assert (run.counts()[0].behind, run.counts()[0].waiting_s) == (None, None)


def test_rounds_that_hang_keep_no_other_topic_waiting(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "LONG_S", 0.2)
    rounds.backlog = 5
    may_end = threading.Event()
    hanging = {f"hdfs{number}" for number in range(6)}

    def before(topic: str) -> None:
        if topic in hanging:
            may_end.wait(300)

    rounds.before = before
    specs, loaded = declared(*sorted(hanging), "sound")
    with started(ArchiveRun(specs, loaded, NOBODY, no_files)):
        try:
            until(lambda: rounds.of("sound") >= 2)
            until(lambda: all(rounds.of(each) for each in hanging))
            before_s = rounds.of("sound")
            until(lambda: rounds.of("sound") > before_s)
        finally:
            may_end.set()


def test_tables_are_maintained_one_at_a_time_beside_the_rounds_of_others(rounds: Rounds) -> None:
    rounds.backlog = 5
    rounds.vacuumed_ago_s = VACUUM_S + 60
    may_end = threading.Event()
    rounds.maintaining = lambda _: cast("None", may_end.wait(300))
    names = "abcd"
    specs, loaded = declared(*names)
    with started(ArchiveRun(specs, loaded, NOBODY, no_files)):
        try:
            until(lambda: len(rounds.maintained) == 1)
            [(_, table)] = rounds.maintained
            first = table.removeprefix("/lake/")
            until(lambda: all(rounds.of(each) >= 5 for each in names if each != first))
            assert len(rounds.maintained) == 1
            assert rounds.of(first) < 5
        finally:
            may_end.set()
        until(lambda: {each for _, each in rounds.maintained} == {f"/lake/{each}" for each in names})
        until(lambda: rounds.of(first) >= 5)
    # Tables that have got many files since are compacted as well.
    assert sorted(each for what, each in rounds.maintained if what == "vacuum") == [f"/lake/{each}" for each in names]


def test_a_single_run_maintains_tables_by_what_they_are(rounds: Rounds, caplog: pytest.LogCaptureFixture) -> None:
    specs, loaded = declared("a")

    def once() -> list[tuple[str, str]]:
        rounds.maintained = []
        assert ArchiveRun(specs, loaded, NOBODY, no_files).run_once(no_spark) == []
        return rounds.maintained

    rounds.files_saved, rounds.vacuumed_ago_s = COMPACT_FILES - 1, VACUUM_S - 600
    assert once() == []
    rounds.files_saved, rounds.vacuumed_ago_s = COMPACT_FILES, VACUUM_S + 60
    assert once() == [("compact", "/lake/a"), ("vacuum", "/lake/a")]
    rounds.maintaining = full_disk
    assert once() == [("compact", "/lake/a")]
    assert "/lake/a was not maintained" in caplog.text


def test_what_cannot_be_archived_is_not_maintained(rounds: Rounds) -> None:
    rounds.vacuumed_ago_s = VACUUM_S + 60

    def before(topic: str) -> None:
        if topic == "a":
            raise RuntimeError("no table")

    rounds.before = before
    specs, loaded = declared("a", "b")
    failures = ArchiveRun(specs, loaded, NOBODY, no_files).run_once(no_spark)
    assert [each.topic for each in failures] == ["a"]
    assert rounds.maintained == [("vacuum", "/lake/b")]
