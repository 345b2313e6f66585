"""A topic that is made anew while a driver has its archive. Without Spark, and without a broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from headwater.pipelines.archive import running, schedule, topic_archive
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.errors import ArchiveError, other_topic
from headwater.pipelines.archive.running import ArchiveRun, RoundFailure
from headwater.pipelines.archive.topic_archive import TopicArchive, TopicMadeAnewError
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.file_systems.file_system import FileSystem
from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.locks.owner import Owner
from tests.unit.archive.test_running import NOBODY, declared
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.sources.known_columns import KnownColumns

LOCK = topic_archive.LOCK_PREFIX


class World:
    """A topic `a` with an id, the locks of its archives, and its table, which may be another topic's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topic_id = "old"
        self.table_id = ""  # of the table; without one there is none
        self.locks: list[str] = []
        self.held: list[str] = []
        #: The ids with which tables were made, and what happens in the moment before.
        self.made: list[str] = []
        self.on_create: Callable[[], None] = lambda: None
        world = self

        class Lock:
            def __init__(self, client: object, name: str, what: str, owner: Owner) -> None:
                self.name = name

            def acquire(self, is_stopped: Callable[[], bool]) -> None:
                world.locks.append(self.name)
                world.held.append(self.name)

            def release(self) -> None:
                if self.name in world.held:
                    world.held.remove(self.name)

            def confirm(self) -> None:
                assert self.name in world.held

        class Table:
            def __init__(self, path: str, topic: str, topic_id: str, *_: object) -> None:
                self.path, self.topic_id = path, topic_id

            def snapshot(self, spark: object, mode: str | None) -> None:
                if world.table_id and world.table_id != self.topic_id:
                    raise ArchiveError(other_topic(self.path, "a", world.table_id, "a", self.topic_id))

            def create(self, spark: object, schema: object, mode: str, before_commit: Callable[[], None]) -> None:
                world.on_create()
                before_commit()
                world.made.append(self.topic_id)

        class Cluster:
            def __init__(self, client: object) -> None:
                pass

            def __enter__(self) -> Cluster:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def retry(self, what: str, ask: Callable[[], Any]) -> Any:
                return ask()

            def partitions(self, topic: str) -> tuple[int, ...]:
                return (0,)

            def topic_id(self, topic: str) -> str:
                return world.topic_id

        def topic_log(brokers: Brokers, spec: TopicArchiveSpec) -> LogState:
            return LogState("a", world.topic_id, first={0: 0}, end={0: 3})

        monkeypatch.setattr(topic_archive, "topic_log", topic_log)
        monkeypatch.setattr(topic_archive, "bytes_per_offset", lambda *_: None)
        monkeypatch.setattr(topic_archive, "table_columns", lambda *_, **__: None)
        monkeypatch.setattr(topic_archive, "mode_of_new_table", lambda *_: "append")
        monkeypatch.setattr(topic_archive, "BrokerLock", Lock)
        monkeypatch.setattr(topic_archive, "ArchiveTable", Table)
        monkeypatch.setattr(topic_archive, "ClusterClient", Cluster)

    def make_anew(self) -> None:
        self.topic_id = "new"

    def opened(self) -> TopicArchive:
        [spec], _ = declared("a")
        archive = TopicArchive(spec, NOBODY, files)
        archive.open()
        return archive


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A topic with the id `old` and three records, and no table."""
    return World(monkeypatch)


def files(table: str) -> FileSystem:
    return LocalFiles()


def spark() -> SparkSession:
    context = SimpleNamespace(addJobTag=lambda _: None, cancelJobsWithTag=lambda _: None)
    return cast("SparkSession", SimpleNamespace(sparkContext=context, newSession=spark))


def no_columns() -> KnownColumns:
    return cast("KnownColumns", None)


SAID = (
    "topic a was made anew (its id was old and is new): nothing more of the former one is added to the table /lake/a; "
    "the next attempt begins the new one"
)


@pytest.mark.parametrize("table_id", ["", "new"], ids=["no table", "the table of another driver"])
def test_a_topic_that_was_made_anew_ends_the_archive_and_open_takes_the_new_id(world: World, table_id: str) -> None:
    archive = world.opened()
    world.topic_id, world.table_id = "new", table_id
    with pytest.raises(TopicMadeAnewError) as over:
        archive.run_round(spark(), no_columns)
    assert str(over.value) == SAID
    assert world.made == []
    archive.close()
    assert world.held == []
    archive.open()
    assert world.locks == [f"{LOCK}old", f"{LOCK}new"]
    assert world.held == [f"{LOCK}new"]


def test_a_topic_that_is_made_anew_just_before_a_commit_gets_nothing_of_the_former_one(world: World) -> None:
    archive = world.opened()
    world.on_create = world.make_anew
    with pytest.raises(TopicMadeAnewError):
        archive.run_round(spark(), no_columns)
    assert world.made == []


def test_a_table_of_another_topic_is_refused_by_the_archive_that_goes_on(world: World) -> None:
    archive = world.opened()
    world.table_id = "other"
    with pytest.raises(ArchiveError, match="is the archive of topic a with the id other, and a has the id old"):
        archive.run_round(spark(), no_columns)
    assert world.held == [f"{LOCK}old"]


def test_a_run_goes_on_with_the_new_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LOOK_S", 0.02)
    monkeypatch.setattr(schedule, "RETRY_S", 0.01)
    monkeypatch.setattr(ArchiveRun, "_columns", lambda *_: None)
    failures: list[RoundFailure] = []
    specs, loaded = declared("a")
    world.on_create = world.make_anew
    run = ArchiveRun(specs, loaded, NOBODY, files, on_failure=failures.append)
    thread = threading.Thread(target=run.run, args=(spark,))
    thread.start()
    try:
        until(lambda: world.made[:1] == ["new"])
    finally:
        run.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert set(world.made) == {"new"}
    assert world.locks == [f"{LOCK}old", f"{LOCK}new"]
    assert world.held == []
    assert (failures[0].error, failures[0].is_user_error) == (SAID, False)
    assert failures[0].retry_s is not None
