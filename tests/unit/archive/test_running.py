"""One archive's failure is its own, whatever it is. Without Spark, and without a broker that answers."""

from __future__ import annotations

import threading
from collections.abc import Collection
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from headwater.pipelines.archive import running
from headwater.pipelines.archive.archive_file import TopicArchiveSpec, parse_archive
from headwater.pipelines.archive.configured import KnownArchives
from headwater.pipelines.archive.log_ends import LogEnds
from headwater.pipelines.archive.running import ArchiveRun, RoundFailure
from headwater.pipelines.definition import Loaded
from headwater.pipelines.file_systems.file_system import FileSystem, FileSystemError
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
    return cast("SparkSession", SimpleNamespace(sparkContext=SimpleNamespace(cancelJobsWithTag=lambda _: None)))


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
