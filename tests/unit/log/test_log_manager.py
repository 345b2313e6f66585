"""The folders of a broker: locks, identity, clean and unclean starts, creation and deletion."""

from __future__ import annotations

import os
import random
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.log.log_manager import LogDirError, LogManager
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.manual_clock import ManualClock
from tests.unit.log.conftest import PromptDisk

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch

TP = TopicPartition("flights", 3)
TOPIC_ID = uuid.UUID(int=99)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


Make = Callable[..., LogManager]


@pytest.fixture
def make(tmp_path: Path, clock: ManualClock) -> Iterator[Make]:
    made: list[LogManager] = []

    def make_manager(
        *folders: str,
        node_id: int = 1,
        cluster_id: str | None = None,
        topic_ids: Mapping[str, uuid.UUID] | None = None,
        **properties: object,
    ) -> LogManager:
        config = BrokerConfig.from_properties(
            {"log.dirs": [str(tmp_path / name) for name in folders or ("data",)], "node.id": node_id, **properties}
        )
        manager = LogManager(config, PromptDisk(), clock, random.Random(1), cluster_id=cluster_id, topic_ids=topic_ids)
        made.append(manager)
        manager.start()
        return manager

    yield make_manager
    for manager in made:
        for directory in manager.directories:
            directory.release()


def ends(manager: LogManager) -> Callable[[TopicPartition], int]:
    """The high watermark where each partition has one replica: the log's end."""
    return lambda key: manager.logs[key].log_end_offset


def crash(manager: LogManager) -> None:
    """Let the locks go as a killed process does; nothing is written."""
    for directory in manager.directories:
        directory.release()


def test_a_stop_and_a_start_find_every_log(make: Make, make_batch: MakeBatch, tmp_path: Path) -> None:
    manager = make()
    log = manager.create(TP, TOPIC_ID, TopicConfig())
    log.append_as_leader(make_batch(3), leader_epoch=0, now_ms=1_000_000)
    cluster_id = manager.cluster_id
    manager.close()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "data" / "recovery-point-offset-checkpoint").read_text() == "0\n1\nflights 3 3\n"
    again = make()
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    assert again.cluster_id == cluster_id
    assert list(again.logs) == [TP]
    assert again.logs[TP].topic_id == TOPIC_ID
    assert again.logs[TP].log_end_offset == 3


def test_a_crash_is_recovered_from(make: Make, make_batch: MakeBatch, tmp_path: Path) -> None:
    manager = make()
    log = manager.create(TP, TOPIC_ID, TopicConfig())
    log.append_as_leader(make_batch(3), leader_epoch=0, now_ms=1_000_000)
    with (tmp_path / "data" / str(TP) / "00000000000000000000.log").open("ab") as file:
        file.write(make_batch(1)[:-1])
    crash(manager)
    assert make().logs[TP].log_end_offset == 3


def test_the_start_offset_survives_a_restart(make: Make, make_batch: MakeBatch) -> None:
    manager = make()
    log = manager.create(TP, TOPIC_ID, TopicConfig())
    log.append_as_leader(make_batch(9), leader_epoch=0, now_ms=1_000_000)
    log.delete_records_before(4, 9)
    manager.maintain(2_000_000, ends(manager))
    crash(manager)
    assert make().logs[TP].log_start_offset == 4


def test_creating_a_log_that_exists_returns_it(make: Make) -> None:
    manager = make()
    log = manager.create(TP, TOPIC_ID, TopicConfig())
    config = TopicConfig(retention_ms=5)
    assert manager.create(TP, TOPIC_ID, config) is log
    assert log.config is config


def test_a_lost_topic_id_is_supplied_by_the_next_creation(make: Make, tmp_path: Path) -> None:
    manager = make()
    manager.create(TP, TOPIC_ID, TopicConfig())
    manager.close()
    metadata = tmp_path / "data" / str(TP) / "partition.metadata"
    assert metadata.read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAYw"
    for damage in (b"", b"version: 0\ntopic_id: ?\n", b"version: 9\ntopic_id: AAAAAAAAAAAAAAAAAAAAYw\n"):
        metadata.write_bytes(damage)
        again = make()
        assert again.logs[TP].topic_id == uuid.UUID(int=0)
        again.close()
    metadata.unlink()
    again = make()
    assert again.create(TP, TOPIC_ID, TopicConfig()).topic_id == TOPIC_ID
    again.close()
    assert make().logs[TP].topic_id == TOPIC_ID


def test_a_deleted_log_goes_at_once_and_its_files_later(
    make: Make, make_batch: MakeBatch, tmp_path: Path, clock: ManualClock
) -> None:
    manager = make()
    log = manager.create(TP, TOPIC_ID, TopicConfig(file_delete_delay_ms=500))
    log.append_as_leader(make_batch(1), leader_epoch=0, now_ms=1_000_000)
    part = log.read(0, 100_000, upper_bound_offset=1, min_one_batch=True)
    manager.delete(TP)
    manager.delete(TP)
    assert TP not in manager.logs
    [folder] = [path for path in (tmp_path / "data").iterdir() if path.is_dir()]
    assert folder.name.startswith("flights-3.")
    assert folder.name.endswith("-delete")
    fresh = manager.create(TP, uuid.UUID(int=100), TopicConfig())
    assert fresh.log_end_offset == 0
    manager.maintain(clock.ms + 499, ends(manager))
    assert folder.exists()
    manager.maintain(clock.ms + 500, ends(manager))
    assert not folder.exists()
    assert len(part.file.pread(part.size, part.position)) == part.size


def test_a_half_deleted_log_is_removed_at_the_start(make: Make, tmp_path: Path) -> None:
    make().close()
    (tmp_path / "data" / f"flights-0.{'a' * 32}-delete").mkdir()
    (tmp_path / "data" / "not a partition").mkdir()
    assert make().logs == {}
    assert sorted(path.name for path in (tmp_path / "data").iterdir() if path.is_dir()) == ["not a partition"]


def test_logs_are_spread_over_the_folders(make: Make) -> None:
    manager = make("one", "two")
    for partition in range(6):
        manager.create(TopicPartition("t", partition), TOPIC_ID, TopicConfig())
    folders = [Path(log.directory).parent.name for log in manager.logs.values()]
    assert sorted(folders) == ["one"] * 3 + ["two"] * 3
    manager.close()
    assert len(make("one", "two").logs) == 6


def test_a_partition_in_two_folders_is_refused(make: Make, tmp_path: Path) -> None:
    manager = make("one", "two")
    manager.create(TP, TOPIC_ID, TopicConfig())
    manager.close()
    shutil.copytree(tmp_path / "one" / str(TP), tmp_path / "two" / str(TP))
    with pytest.raises(LogDirError, match="is also in"):
        make("one", "two")


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("empty", ["one", "two"])
def test_an_empty_folder_of_a_partition_gives_way_to_its_log(
    make: Make, make_batch: MakeBatch, tmp_path: Path, empty: str, is_named: bool
) -> None:
    """What a creation that failed on a full disk left, before it was repeated in the other folder."""
    manager = make("one", "two")
    manager.preferred_paths[TP] = str(tmp_path / ("two" if empty == "one" else "one"))
    log = manager.create(TP, TOPIC_ID, TopicConfig())
    log.append_as_leader(make_batch(1), leader_epoch=0, now_ms=1_000_000)
    manager.close()
    half_made = tmp_path / empty / str(TP)
    half_made.mkdir()
    (half_made / f"{0:020}.log").touch()
    if is_named:
        shutil.copy(Path(log.directory) / "partition.metadata", half_made)
    again = make("one", "two")
    assert again.logs[TP].log_end_offset == 1
    assert not half_made.exists()


@pytest.mark.parametrize("is_present", [False, True])
@pytest.mark.parametrize("damaged", ["one", "two"])
def test_of_two_folders_of_a_name_one_of_which_lost_its_topic_id_the_other_is_opened(
    make: Make, make_batch: MakeBatch, tmp_path: Path, damaged: str, is_present: bool
) -> None:
    """A topic was deleted and made again while one folder was offline, and its file was torn by a power loss."""
    other = "two" if damaged == "one" else "one"
    for name, records in ((damaged, 2), (other, 1)):
        manager = make("one", "two")
        manager.preferred_paths[TP] = str(tmp_path / name)
        log = manager.create(TP, TOPIC_ID, TopicConfig())
        log.append_as_leader(make_batch(records), leader_epoch=0, now_ms=1_000_000)
        manager.close()
        (tmp_path / name / str(TP)).rename(tmp_path / name / "away")
    for name in (damaged, other):
        (tmp_path / name / "away").rename(tmp_path / name / str(TP))
    (tmp_path / damaged / str(TP) / "partition.metadata").write_text("version: 0\n")
    manager = make("one", "two", topic_ids={TP.topic: TOPIC_ID} if is_present else {})
    assert Path(manager.logs[TP].directory).parent.name == other
    [kept] = [path.name for path in (tmp_path / damaged).iterdir() if path.is_dir()]
    assert kept.endswith("-stray"), "its records are kept"


def test_a_creation_that_fails_leaves_no_folder(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make("one", "two")
    write = manager.disk.write_atomic

    def fail(path: str, data: Any, *, sync: bool = True) -> None:
        if path.endswith("partition.metadata"):
            raise OSError(28, "No space left on device")
        write(path, data, sync=sync)

    manager.preferred_paths[TP] = str(tmp_path / "two")
    with monkeypatch.context() as full:
        full.setattr(manager.disk, "write_atomic", fail)
        with pytest.raises(LogDirError, match="No space left"):
            manager.create(TP, TOPIC_ID, TopicConfig())
    assert not (tmp_path / "two" / str(TP)).exists()
    manager.preferred_paths[TP] = str(tmp_path / "one")
    manager.create(TP, TOPIC_ID, TopicConfig())
    manager.close()
    assert Path(make("one", "two").logs[TP].directory).parent.name == "one"


@pytest.mark.parametrize("present", [None, "one", "two"])
def test_of_logs_of_two_topics_of_a_name_that_of_the_present_one_is_opened(
    make: Make, tmp_path: Path, present: str | None
) -> None:
    """A topic was deleted and made anew while one folder was offline. The other log is kept: it may be needed."""
    ids = {"one": uuid.UUID(int=1), "two": uuid.UUID(int=2)}
    for name, topic_id in ids.items():
        manager = make("one", "two")
        manager.preferred_paths[TP] = str(tmp_path / name)
        manager.create(TP, topic_id, TopicConfig())
        manager.close()
        (tmp_path / name / str(TP)).rename(tmp_path / name / "away")
    for name in ids:
        (tmp_path / name / "away").rename(tmp_path / name / str(TP))
    topic_ids = {} if present is None else {TP.topic: ids[present]}
    manager = make("one", "two", topic_ids=topic_ids)
    opened = present or "one"
    assert Path(manager.logs[TP].directory).parent.name == opened
    other = tmp_path / ("two" if opened == "one" else "one")
    [kept] = [path.name for path in other.iterdir() if path.is_dir()]
    assert kept.startswith("flights-3.")
    assert kept.endswith("-stray")


def test_maintenance_rolls_deletes_and_forgets(make: Make, make_batch: MakeBatch, clock: ManualClock) -> None:
    manager = make(**{"producer.id.expiration.ms": 1_000, "log.retention.check.interval.ms": 1_000})
    log = manager.create(TP, TOPIC_ID, TopicConfig(segment_ms=100, retention_ms=5_000))
    batch = make_batch(1, timestamp_ms=clock.ms, producer_id=1, producer_epoch=0, base_sequence=0)
    log.append_as_leader(batch, leader_epoch=0, now_ms=clock.ms)
    manager.maintain(clock.ms + 101, ends(manager))
    assert log.segment_count == 2
    manager.maintain(clock.ms + 999, ends(manager))
    assert (log.segment_count, log.log_start_offset) == (2, 0)
    manager.maintain(clock.ms + 5_001, ends(manager))
    assert (log.segment_count, log.log_start_offset) == (1, 1)
    assert len(log.producers) == 1
    manager.maintain(clock.ms + 600_000, ends(manager))
    assert len(log.producers) == 0


def test_retention_keeps_the_records_that_no_follower_has(
    make: Make, make_batch: MakeBatch, clock: ManualClock
) -> None:
    manager = make(**{"log.retention.check.interval.ms": 1})
    log = manager.create(TP, TOPIC_ID, TopicConfig(retention_ms=1))
    for _ in range(3):
        log.append_as_leader(make_batch(4, timestamp_ms=clock.ms), leader_epoch=0, now_ms=clock.ms)
        log.roll(clock.ms)
    asked: list[TopicPartition] = []

    def high_watermark(key: TopicPartition) -> int:
        asked.append(key)
        return 9

    manager.maintain(clock.ms + 1_000, high_watermark)
    assert (asked, log.log_start_offset, log.log_end_offset) == ([TP], 8, 12)
    manager.maintain(clock.ms + 2_000, ends(manager))
    assert log.log_start_offset == 12


def test_one_failing_log_does_not_keep_the_others_from_maintenance(
    make: Make, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager = make()
    logs = [manager.create(TopicPartition("t", i), TOPIC_ID, TopicConfig(retention_ms=1)) for i in range(2)]
    for log in logs:
        log.append_as_leader(make_batch(1), leader_epoch=0, now_ms=1_000_000)

    def fail(now_ms: int) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(logs[0], "maybe_roll", fail)
    manager.maintain(2_000_000, ends(manager))
    assert "t-0: maintenance failed" in caplog.text
    assert logs[1].log_start_offset == 1
    assert logs[0].log_start_offset == 1, "what cannot be rolled can be deleted, and makes room"


def test_a_log_that_cannot_be_closed_leaves_no_clean_marker(
    make: Make, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager = make()
    log = manager.create(TP, TOPIC_ID, TopicConfig())
    log.append_as_leader(make_batch(1), leader_epoch=0, now_ms=1_000_000)

    def fail() -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(log, "sync_prepared", fail)
    manager.close()
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    assert make().logs[TP].log_end_offset == 1


def test_a_folder_in_use_by_another_broker_is_refused_in_one_line(make: Make) -> None:
    make()
    with pytest.raises(LogDirError, match="another broker uses it") as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_folder_in_use_lets_the_other_folders_go(make: Make) -> None:
    holder = make("two")
    with pytest.raises(LogDirError):
        make("one", "two")
    crash(holder)
    make("one")


def test_a_folder_of_another_node_or_cluster_is_refused(make: Make) -> None:
    manager = make()
    manager.close()
    with pytest.raises(LogDirError, match=r"belongs to node 1, but node\.id is 2"):
        make(node_id=2)
    with pytest.raises(LogDirError, match=f"belongs to cluster {manager.cluster_id}, not to elsewhere"):
        make(cluster_id="elsewhere")
    make(cluster_id=manager.cluster_id)


def test_folders_of_two_clusters_are_refused(make: Make) -> None:
    make("one").close()
    make("two", cluster_id="elsewhere").close()
    with pytest.raises(LogDirError, match="belongs to cluster elsewhere"):
        make("one", "two")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "version is missing"),
        ("\x00\xff", "version is missing"),
        ("version=1\ncluster.id=c\nnode.id=1\n", "directory.id is missing"),
        ("version=7\ncluster.id=c\nnode.id=1\ndirectory.id=d\n", "version 7"),
    ],
)
def test_damaged_meta_properties_are_refused(make: Make, tmp_path: Path, content: str, reason: str) -> None:
    make().close()
    (tmp_path / "data" / "meta.properties").write_text(content)
    with pytest.raises(LogDirError, match=reason):
        make()


def test_a_file_instead_of_a_folder_is_refused(make: Make, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(LogDirError, match="is a file"):
        make()
    with pytest.raises(LogDirError, match="is a file"):
        make("data/below")


def test_a_folder_that_is_not_writable_is_refused(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    real_open = os.open

    def denied(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", path)
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(LogDirError, match="Permission denied; make it writable"):
        make()


def test_a_damaged_checkpoint_only_means_more_checking(
    make: Make, make_batch: MakeBatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = make()
    manager.create(TP, TOPIC_ID, TopicConfig()).append_as_leader(make_batch(2), leader_epoch=0, now_ms=1_000_000)
    manager.close()
    for damage in ("", "0\n5\nflights 3 2\n", "9\n0\n", "0\n1\nflights three 2\n"):
        (tmp_path / "data" / "recovery-point-offset-checkpoint").write_text(damage)
        again = make()
        assert again.logs[TP].log_end_offset == 2
        assert "recovery-point-offset-checkpoint is damaged" in caplog.text
        again.close()
        caplog.clear()


def test_topic_names_as_long_as_kafka_allows_can_be_deleted(make: Make) -> None:
    manager = make()
    long = TopicPartition("t" * 249, 0)
    manager.create(long, TOPIC_ID, TopicConfig())
    manager.delete(long)
    assert manager.logs == {}
